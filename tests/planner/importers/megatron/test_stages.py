"""Stages as Megatron-LM and DeepSpeed cut them."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.megatron.stages import stages_of
from shardwright.specs import InputError
from tests.planner.importers.megatron.scripts import arguments_of

PP = "--pipeline-model-parallel-size"


@pytest.mark.parametrize(
    ("line", "layers", "vpp", "counts"),
    [
        (f"{PP} 4", 8, 1, (2, 2, 2, 2)), ("", 8, 1, (8,)),
        (f"{PP} 2 --num-layers-per-virtual-pipeline-stage 2", 8, 2, (2, 2, 2, 2)),
        (f"{PP} 2 --num-virtual-stages-per-pipeline-rank 4", 8, 4, (1,) * 8),
        (f"{PP} 4 --decoder-first-pipeline-num-layers 1", 7, 1, (1, 2, 2, 2)),
        (f"{PP} 2 --decoder-last-pipeline-num-layers 14", 32, 1, (18, 14)),
        (f"{PP} 2 --decoder-first-pipeline-num-layers 2 --num-virtual-stages-per-pipeline-rank 2",
         6, 2, (1, 2, 1, 2)),
        (f"{PP} 4 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
         6, 1, (1, 2, 2, 1)),
        (f"{PP} 2 --pipeline-model-parallel-layout E|t*2|(t|)*1tL", 4, 2, (0, 2, 1, 1)),
        (f"{PP} 2 --hybrid-layer-pattern MM|*-M", 5, 1, (2, 3)),
        (f"{PP} 4 --deepspeed --pp-partition-method type:transformer|embedding", 30, 1,
         (7, 8, 8, 7)),
        (f"{PP} 4 --deepspeed", 30, 1, (8, 8, 8, 6)),
    ],
)  # fmt: skip
def test_layers_of_each_virtual_stage(
    line: str, layers: int, vpp: int, counts: tuple[int, ...]
) -> None:
    found = stages_of(arguments_of(line), layers)
    assert (found.vpp, found.counts) == (vpp, counts)
    assert found.conflict is None
    assert found.stops is not None
    assert found.stops[-1] == layers


def test_per_rank_sums_over_chunks() -> None:
    line = f"{PP} 2 --pipeline-model-parallel-layout Et|tt|t|tttL"
    assert stages_of(arguments_of(line), 7).per_rank == (2, 5)


def test_what_megatron_refuses_is_said() -> None:
    assert "do not divide" in (stages_of(arguments_of(f"{PP} 4"), 10).conflict or "")
    for line, layers in ((f"{PP} 2 --pipeline-model-parallel-layout Et|t|tL", 3),
                         (f"{PP} 2 --pipeline-model-parallel-layout Et|xL", 2),
                         (f"{PP} 2 --pipeline-model-parallel-layout Et|tL", 5),
                         (f"{PP} 2 --decoder-first-pipeline-num-layers 9", 4)):  # fmt: skip
        with pytest.raises(InputError):
            stages_of(arguments_of(line), layers)


def test_without_a_number_of_layers_only_degrees_are_known() -> None:
    found = stages_of(arguments_of(f"{PP} 4"), None)
    assert (found.pp, found.counts, found.stops) == (4, None, None)
