"""What a command line says of its degrees, with Megatron-LM's defaults."""

from __future__ import annotations

from shardwright.planner.exporters.megatron.arguments import Arguments
from shardwright.planner.exporters.megatron.checks.case import Case, listed
from shardwright.planner.exporters.megatron.versions import version_of
from tests.planner.exporters.megatron.commands import EXPERTS


def case(*lines: str, world: int = 16) -> Case:
    return Case(Arguments.of(*lines), world, {}, None, version_of(None))


def test_degrees_and_their_defaults() -> None:
    found = case(*EXPERTS)
    assert (found.tp, found.pp, found.cp, found.dp) == (2, 2, 1, 4)
    assert (found.ep, found.etp, found.edp) == (4, 1, 2)
    assert found.num_microbatches == 16
    bare = case("--tensor-model-parallel-size 4")
    assert bare.etp == 4, "as tp"
    assert bare.num_microbatches == 1, "the batch is one micro-batch of each replica"
    assert bare.query_groups == bare.heads


def test_virtual_stages_by_any_option() -> None:
    sizes = ("--num-layers 12", "--pipeline-model-parallel-size 2")
    assert case(*sizes).vpp == 1
    assert case(*sizes, "--num-layers-per-virtual-pipeline-stage 2").vpp == 3
    assert case(*sizes, "--num-virtual-stages-per-pipeline-rank 2").vpp == 2
    assert case(*sizes, "--pipeline-model-parallel-layout Et*3|(ttt|)*2t*3L").vpp == 2
    assert case(*sizes, "--pipeline-model-parallel-layout ???").vpp == 1


def test_weight_shards_are_beyond_tp() -> None:
    found = case("--tensor-model-parallel-size 2", "--tensor-parallel-num-weight-shards 8")
    assert (found.gtp, found.dp) == (4, 2)


def test_lists_in_options() -> None:
    assert listed("[1, 2]") == [1, 2]
    assert listed("0.5") == [0.5]
    assert listed("__import__('os')") == []
