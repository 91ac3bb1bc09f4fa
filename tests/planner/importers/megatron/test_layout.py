"""Choices of a layout from arguments."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.megatron.layout import (
    context_degree,
    degree,
    grid_of,
    number_of,
    recompute_text,
    stated_recompute,
)
from shardwright.planner.importers.megatron.stages import Stages
from tests.planner.importers.megatron.scripts import arguments_of

PP2 = "--pipeline-model-parallel-size 2 "


def choices(line: str, *, experts: bool = False, zero: int | None = None) -> dict[str, object]:
    return dict(grid_of(arguments_of(line), 8, zero, has_experts=experts).choices)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("--use-distributed-optimizer", 1),
        ("", 0),
        ("--use-torch-fsdp2", 3),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", 3),
        ("--use-custom-fsdp --data-parallel-sharding-strategy optim_grads", 2),
        ("--use-megatron-fsdp --use-distributed-optimizer", 0),
        ("--deepspeed --zero-stage 2", 2),
        ("--zero-stage 2", 0),
    ],
)
def test_zero(line: str, wanted: int) -> None:
    assert choices(line)["zero"] == wanted


def test_zero_of_the_configuration_unless_the_option_says_otherwise() -> None:
    assert choices("--deepspeed", zero=3)["zero"] == 3
    assert choices("--deepspeed --zero-stage 1", zero=3)["zero"] == 1


def test_sequence_parallelism_needs_tp() -> None:
    assert choices("--sequence-parallel")["sequence_parallel"] is False
    line = "--sequence-parallel --tensor-model-parallel-size 2"
    assert choices(line)["sequence_parallel"] is True


def test_experts_have_the_tp_of_the_rest_unless_it_is_stated() -> None:
    line = "--tensor-model-parallel-size 4 --expert-model-parallel-size 2"
    found = choices(line, experts=True)
    assert (found["ep"], found["etp"]) == (2, 4)
    grid = grid_of(arguments_of(line), 8, None, has_experts=False)
    assert "ep" not in grid.choices
    assert "without effect" in grid.unread[0]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("", "none"), ("--recompute-activations", "selective"),
        ("--checkpoint-activations", "full"), ("--activations-checkpoint-method uniform", "full"),
        ("--recompute-granularity selective --recompute-modules layernorm moe_act",
         "selective:norm+moe_act"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 2",
         "full:2/full:2/full"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 0", "none"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
         "full"),
    ],
)  # fmt: skip
def test_recomputation_of_all_generations(line: str, wanted: str) -> None:
    assert recompute_text(arguments_of(line), Stages(3, 1, (4, 3, 1))) == wanted


def test_what_is_stated_of_recomputation() -> None:
    assert stated_recompute(arguments_of("")) is None
    found = stated_recompute(arguments_of("--recompute-granularity full --recompute-num-layers 1"))
    assert found == {"granularity": "full", "method": None, "num_layers": 1, "modules": None}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("", "1f1b"),
        ("--enable-zero-bubble", "zb-h1"),
        ("--enable-zero-bubble --zero-bubble-max-pending-backward 4", "zb-h2"),
        ("--num-virtual-stages-per-pipeline-rank 2", "interleaved-1f1b"),
        ("--num-virtual-stages-per-pipeline-rank 2 --zero-bubble-v-schedule", "zb-v"),
    ],
)
def test_schedules(line: str, wanted: str) -> None:
    assert choices(PP2 + line)["schedule"] == wanted


def test_the_rest() -> None:
    line = "--context-parallel-size 2 --cp-comm-type a2a --use-tp-pp-dp-mapping"
    found = choices(line + " --optimizer-cpu-offload --cpu-offloading-num-layers 2")
    assert (found["cp_kind"], found["rank_order"]) == ("all_to_all", "tp-cp-pp-dp")
    assert found["offload"] == "activations+optimizer"
    ulysses = arguments_of("--ds-sequence-parallel-size 4")
    assert context_degree(ulysses) == 4
    assert degree(ulysses, "tensor-model-parallel-size") == 1
    assert number_of({"tp": 4, "cp_kind": "ring"}, "tp") == 4
