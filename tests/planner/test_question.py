"""What users type becomes our nouns; what they leave out is stated; what is wrong is named."""

from __future__ import annotations

import pytest

from shardwright.cost_models.blocks.support import OWN_LACKS
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner import question
from shardwright.planner.question import Training
from shardwright.specs import InputError, Precision
from tests.cli import samples


def test_defaults_are_taken_and_stated() -> None:
    spec, assumed = question.complete_training(Training(), samples.model(), num_devices=4)
    assert (spec.seq_len, spec.global_batch) == (4096, 1024)
    assert spec.precision is Precision.BF16
    assert assumed == {
        "seq_len": "4096", "global_batch": "1024", "precision": "bf16", "optimizer": "adamw",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("longest", "seq_len"), [(None, 8192), (131072, 8192), (8192, 8192), (1024, 1024)]
)
def test_the_default_sequence_is_the_model_s_up_to_8192(longest: int | None, seq_len: int) -> None:
    model = samples.model(max_seq_len=longest)
    spec, _ = question.complete_training(Training(), model, num_devices=1)
    assert spec.seq_len == seq_len


def test_what_is_given_is_not_assumed() -> None:
    given = Training("12", "2k", "fp32", "adamw", tokens="15T")
    spec, assumed = question.complete_training(given, samples.model(), num_devices=4)
    assert (spec.global_batch, spec.seq_len, spec.precision) == (12, 2048, Precision.FP32)
    assert spec.token_budget == 15 * 10**12
    assert assumed == {}


@pytest.mark.parametrize(
    ("seq_len", "num_devices", "batch"),
    [
        (8192, 64, 512),
        (8192, 1, 512),
        (8192, 48, 528),
        (8192, 6, 510),
        (1024, 8, 4096),
        (2**23, 8, 1),
        (8192, 16384, 512),
    ],
)
def test_the_default_batch_is_about_four_million_tokens_and_shared_evenly(
    seq_len: int, num_devices: int, batch: int
) -> None:
    assert question.default_global_batch(seq_len, num_devices) == batch


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param(Training(global_batch="0"), "--global-batch", id="zero-batch"),
        pytest.param(Training(global_batch="1.5"), "--global-batch", id="half-a-sequence"),
        pytest.param(Training(global_batch="-8"), "-8", id="negative-batch"),
        pytest.param(Training(seq_len="long"), "long", id="seq-len-in-words"),
        pytest.param(Training(seq_len=""), "quantity", id="empty-seq-len"),
        pytest.param(Training(precision="fp31"), "fp32", id="precision-nearest"),
        pytest.param(Training(optimizer="adam"), "adamw", id="optimizer"),
        pytest.param(Training(trainable="lora:0"), "lora:RANK", id="trainable"),
        pytest.param(Training(trainable="frozen:vision"), "decoder", id="frozen-tower"),
        pytest.param(Training(gradient_dtype="fp8"), "fp32", id="gradient-dtype"),
        pytest.param(Training(tokens="some"), "some", id="tokens"),
        pytest.param(Training(tokens="9" * 400), "whole number", id="beyond-all-numbers"),
    ],
)
def test_wrong_training_options_are_named(given: Training, said: str) -> None:
    with pytest.raises(InputError, match=said):
        question.complete_training(given, samples.model(), num_devices=4)


def test_fp8_is_an_alias() -> None:
    spec, _ = question.complete_training(Training(precision="fp8"), samples.model(), num_devices=1)
    assert spec.precision is Precision.FP8_TENSOR


def test_training_options_are_read() -> None:
    given = Training(optimizer="muon", trainable="qlora:08", gradient_dtype="bf16", precision="fp8")
    spec, _ = question.complete_training(given, samples.model(), num_devices=4)
    assert (spec.optimizer.name, spec.trainable, spec.gradient_dtype) == ("muon", "qlora:8", "bf16")
    assert spec.precision is Precision.FP8_TENSOR
    frozen = Training(trainable="frozen:decoder")
    assert question.complete_training(frozen, samples.model(), 4)[0].frozen_towers == {"decoder"}


def test_software_is_named_or_customary() -> None:
    profile = resolve_cluster("dgx-h100", gpus=4)
    assumed: dict[str, str] = {}
    assert question.software_named(None, profile, assumed).framework == "generic"
    assert assumed == {"software": "generic"}
    assert question.software_named("torchtitan", profile, {}).framework == "torchtitan"
    own = question.software_named("shardwright", profile, {})
    assert (own.framework, own.lacks) == ("shardwright", OWN_LACKS)
    with pytest.raises(InputError, match="megatron-bridge"):
        question.software_named("megatron-brigde", profile, {})
