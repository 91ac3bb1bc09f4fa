from __future__ import annotations

from typing import Any

import pytest

from shardwright.planner.validation.problem import Case, CaseMaker, first_of
from shardwright.specs import Precision
from shardwright.specs.bodies import MoeBlock
from tests.planner.validation import rows


def made(defaults: dict[str, Any] | None = None, **changes: Any) -> Case | str:
    return CaseMaker(defaults=lambda row: defaults or {}).case_of(rows.row(**changes))


def case(defaults: dict[str, Any] | None = None, **changes: Any) -> Case:
    found = made(defaults, **changes)
    assert isinstance(found, Case), found
    return found


def test_a_whole_row_assumes_nothing() -> None:
    found = case()
    assert found.assumed == ()
    assert (found.num_gpus, found.accelerator) == (8, "a100-sxm4-80gb")
    assert (found.training.global_batch, found.training.seq_len) == (16, 1024)
    assert found.software.framework == "some-stack"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"kind": "kernel"}, "no training run"),
        ({"hardware": {"accelerator": "Q9000", "gpu": None}}, "Q9000"),
        ({"model": {"layers": None}}, "not stated"),
        ({"model": {"seq_len": None}}, "sequence length"),
        ({"parallel": {"precision": "int3"}}, "int3"),
        ({"parallel": {"global_batch": None, "num_microbatches": None}}, "global batch"),
        ({"model": {"heads": 7, "kv_heads": 5}}, "no model"),
    ],
)
def test_what_makes_no_job_says_why(changes: dict[str, Any], told: str) -> None:
    found = made(**changes)
    assert isinstance(found, str)
    assert told in found


class TestTraining:
    def test_an_unstated_batch_follows_from_the_micro_batches(self) -> None:
        found = case(parallel={"global_batch": None})
        assert found.training.global_batch == 4 * 2 * 2
        assert found.assumed == ("global_batch = 16",)

    def test_for_memory_alone_the_pipeline_is_full(self) -> None:
        found = case(
            kind="memory_only",
            measured={"iteration_time_s": None},
            parallel={"global_batch": None, "num_microbatches": None, "dp": None},
        )
        assert found.training.global_batch == 2 * 2 * 2 * 2

    def test_precision_is_the_rows_then_the_stacks_then_bf16(self) -> None:
        usual = {"precision": ["fp16"]}
        assert case(usual).training.precision is Precision.BF16
        assert case(usual, parallel={"precision": None}).training.precision is Precision.FP16
        plain = case(parallel={"precision": None})
        assert (plain.training.precision, plain.assumed) == (Precision.BF16, ("precision = bf16",))

    @pytest.mark.parametrize(
        ("remark", "trainable"),
        [
            ("SFT; LoRA rank 8", "lora:8"),
            ("LoRA r=4", "lora:4"),
            ("QLoRA", "qlora:16"),
            ("SFT; ", "full"),
        ],
    )
    def test_adapters_are_read_from_remarks(self, remark: str, trainable: str) -> None:
        assert case(parallel={"other": remark}).training.trainable == trainable

    def test_the_optimizer_may_be_remarked_or_the_stacks(self) -> None:
        assert case().training.optimizer.name == "adamw"
        assert case(model={"other": "Muon optimizer"}).training.optimizer.name == "muon"
        assert case({"optimizer": "sgd"}).training.optimizer.name == "sgd"


class TestSoftware:
    def test_the_row_wins_over_its_stack(self) -> None:
        defaults = {"compile": True, "attention_kernel": "math", "recompute": "full"}
        assert case(defaults).software.compile
        assert case(defaults).software.attention_kernel == "math"
        assert not case(defaults, parallel={"compile": False}).software.compile

    def test_what_it_lacks_is_a_list_not_a_choice_of_several(self) -> None:
        assert case({"lacks": ("cp", "zero2")}).software.lacks == ("cp", "zero2")
        excepted = case({"overlap_tensor_parallel_except": ("nvfp4",)}).software
        assert excepted.overlap_tensor_parallel_except == ("nvfp4",)

    def test_the_framework_is_the_stacks_unless_another_is_known(self) -> None:
        assert case(stack=None).software.framework == "unknown"
        assert case({"framework": "deepspeed"}).software.framework == "deepspeed"

    def test_remarks_name_graphs_and_the_allocator(self) -> None:
        found = case(parallel={"other": "CUDA graphs; expandable_segments:True"}).software
        assert found.cuda_graphs
        assert found.allocator == "expandable_segments"

    def test_remarks_name_asynchronous_tensor_parallelism(self) -> None:
        for remark in ("async TP", "float8 + AsyncTP", "asynchronous TP"):
            assert case(parallel={"other": remark}).software.overlap_tensor_parallel, remark
        assert not case(parallel={"other": "async checkpoints"}).software.overlap_tensor_parallel


class TestSharing:
    def test_rows_of_one_model_share_it(self) -> None:
        maker = CaseMaker(defaults=lambda row: {})
        first, second = (maker.case_of(rows.row(id=i)) for i in ("a", "b"))
        assert isinstance(first, Case)
        assert isinstance(second, Case)
        assert first.model is second.model

    def test_not_where_tokens_are_dropped(self) -> None:
        maker = CaseMaker(defaults=lambda row: {})
        factors = []
        for remark in (None, "tokendrop", "capacity factor 1.5, padded"):
            found = maker.case_of(
                rows.row(model={"experts": 8, "topk": 2}, parallel={"other": remark})
            )
            assert isinstance(found, Case)
            body = next(found.model.decoder.layers()).branches[1].body
            assert isinstance(body, MoeBlock)
            factors.append(body.capacity_factor)
        assert factors == [None, 1.0, 1.5]


@pytest.mark.parametrize(("value", "first"), [([1, 2], 1), ((3,), 3), ("a", "a"), ([], [])])
def test_first_of(value: Any, first: Any) -> None:
    assert first_of(value) == first
