"""FLOP counts against what Megatron-LM's own function answered."""

from __future__ import annotations

import pytest

from shardwright.cost_models.blocks.operations import (
    Attention,
    BlockBooks,
    Collective,
    Elementwise,
    Matmul,
)
from shardwright.cost_models.flops import (
    executed_flops,
    model_flops_6n,
    model_flops_megatron,
    operations_flops,
)
from shardwright.specs import ModelSpec, TrainingSpec
from shardwright.specs.sources import model_from_config, preset, resolve_model


def gpt3_with_padded_vocabulary() -> ModelSpec:
    config = preset("gpt-3-175b").config | {"vocab_size": 51200}
    return model_from_config(config, name="gpt-3", source="a test").spec


@pytest.mark.parametrize(
    ("model", "global_batch", "seq_len", "flops"),
    [
        (resolve_model("llama-3-8b"), 1, 8192, 421_645_529_382_912),
        (gpt3_with_padded_vocabulary(), 1536, 2048, 3.3405978001601987e18),
    ],
)
def test_megatrons_own_figures(
    model: ModelSpec, global_batch: int, seq_len: int, flops: float
) -> None:
    training = TrainingSpec(global_batch=global_batch, seq_len=seq_len)
    assert model_flops_megatron(model, training) == flops


def test_attention_grows_with_the_square_of_the_sequence() -> None:
    model = resolve_model("gpt2")
    at_512, at_1024 = (
        model_flops_megatron(model, TrainingSpec(global_batch=batch, seq_len=seq_len))
        for batch, seq_len in ((2, 512), (1, 1024))
    )
    assert at_1024 - at_512 == 6 * 12 * 768 * (1024**2 - 2 * 512**2)


def test_the_rule_of_thumb() -> None:
    model = resolve_model("gpt2")
    training = TrainingSpec(global_batch=4, seq_len=1024)
    assert model_flops_6n(model, training) == 6 * 124_439_808 * 4096


def test_executed_flops_are_summed_over_passes_and_kinds() -> None:
    matmul = Matmul("up", m=2, n=3, k=5, dtype="fp32")
    attention = Attention("core", 1, 2, 4, 4, 8, causal=True, backward=True, dtype="fp32")
    free = (
        Elementwise("rms_norm", 1000, "fp32"),
        Collective("gather", "all_gather", "tp", 1000, "fp32"),
    )
    books = BlockBooks(
        name="mlp", forward=(matmul, *free), backward_input=(matmul, attention),
        backward_weight=(matmul,), parameters=(), saved=(), output_bytes=0,
        unsaved_forward_bytes=0, forward_transient_bytes=0, backward_transient_bytes=0,
    )  # fmt: skip
    assert operations_flops(books.forward) == 60
    assert executed_flops([books, books]) == 2 * (3 * 60 + 5 * 2 * 2 * 4 * 4 * 8)
