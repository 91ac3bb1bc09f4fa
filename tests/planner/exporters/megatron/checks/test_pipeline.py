"""Rules 19 to 28."""

from __future__ import annotations

import pytest

from tests.planner.exporters.megatron.commands import EXPERTS, broken

FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
LAYOUT = "--pipeline-model-parallel-layout"


@pytest.mark.parametrize("version", ["main", "core_r0.9.0"])
def test_19_layers_divide_over_stages(version: str) -> None:
    """Core r0.9.0 does not assert it, and loses the layers that are left."""
    assert broken("--num-layers 13", version=version) == {19}
    counted = ("--num-layers 13", "--account-for-loss-in-pipeline-split")
    assert broken(*counted, version=version) == set()


def test_20_one_way_to_say_virtual_stages() -> None:
    each, stages = ("--num-layers-per-virtual-pipeline-stage",
                    "--num-virtual-stages-per-pipeline-rank")  # fmt: skip
    assert broken(f"{each} 3") == set()
    assert 20 in broken(f"{each} 3", f"{stages} 2")
    assert broken(f"{each} 4") == {20}
    assert 20 in broken(f"{each} 3", f"{FIRST} 6")


@pytest.mark.parametrize(
    ("layout", "more"),
    [
        ("Et*6|t*6L", ()),
        ("Et*5|t*7L", ()),
        ("E|t*12L", ()),
        ("E(tt|)*3(ttt,tttL)", ("--wrong",)),  # a bracket that nothing repeats
        ("t*6|t*6L", ("--wrong",)),
        ("Et*6|t*6", ("--wrong",)),
        ("Et*6|Et*6L", ("--wrong",)),
        ("Et*6|t*5L", ("--wrong",)),
        ("Et*6|t*3|t*3L", ("--wrong",)),
        ("Et*6|t*6mL", ("--wrong",)),
        ("Ex*6|t*6L", ("--wrong",)),
    ],
)
def test_21_layouts(layout: str, more: tuple[str, ...]) -> None:
    assert broken(f"{LAYOUT} {layout}") == ({21} if more else set())


def test_21_predictions_stand_together_in_the_last_chunk() -> None:
    two = "--mtp-num-layers 2"
    assert broken(f"{LAYOUT} Et*6|t*6mmL", two) == set()
    assert broken(f"{LAYOUT} Et*6|t*6mL", two) == {21}
    assert broken(f"{LAYOUT} Et*6|t*3|t*3m|mL", two) == {21}
    assert broken(f"{LAYOUT} Et*6|t*3m|t*3|L", "--mtp-num-layers 1") == {21}
    assert broken(f"{LAYOUT} Et*6|t*6|mm|L", two) == {21}, "on the first rank"


def test_21_a_layout_excludes_other_ways_and_old_versions() -> None:
    assert broken(f"{LAYOUT} Et*6|t*6L", f"{FIRST} 6") == {21}
    assert broken(f"{LAYOUT} Et*6|t*6L", version="core_r0.9.0") == {21}
    assert broken(f"{LAYOUT} Et*6|t*6L", "--account-for-loss-in-pipeline-split") == {21}


def test_22_layers_of_the_ends() -> None:
    four = ("--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 4")
    assert broken(*four, f"{FIRST} 2", f"{LAST} 4") == set()
    assert broken(*four, f"{FIRST} 2", f"{LAST} 3") == {22}
    assert broken(*four, f"{FIRST} 0", f"{LAST} 4") == {22}
    assert broken(f"{FIRST} 5", f"{LAST} 6") == {22}, "a layer is left without a stage"
    virtual = "--num-virtual-stages-per-pipeline-rank 2"
    assert broken(*four, f"{FIRST} 2", f"{LAST} 2", virtual) == set()
    assert broken(*four, f"{FIRST} 3", f"{LAST} 3", virtual) == {22}
    assert broken(*four, f"{FIRST} 2", f"{LAST} 2", virtual, version="core_r0.9.0") == {22}
    assert 22 in broken(*four, f"{FIRST} 2", "--account-for-loss-in-pipeline-split")


def test_23_virtual_stages_need_a_pipeline() -> None:
    virtual = "--num-virtual-stages-per-pipeline-rank 2"
    assert broken(virtual) == set()
    assert broken(virtual, "--no-overlap-p2p-communication") == {23}
    assert broken(virtual, "--pipeline-model-parallel-size 1") == {23}


def test_24_rounds_of_micro_batches() -> None:
    virtual = "--num-virtual-stages-per-pipeline-rank 2"
    assert broken(virtual, "--global-batch-size 60") == {24}, "m = 15, pp = 2"
    group = "--microbatch-group-size-per-virtual-pipeline-stage"
    assert broken(virtual, "--global-batch-size 60", f"{group} 5") == set()
    assert broken(virtual, f"{group} 1") == {24}
    assert broken(virtual, f"{group} 17") == {24}


def test_25_patterns_of_hybrid_models() -> None:
    pattern = "--hybrid-layer-pattern M*-M|M*-M"
    assert broken(pattern, without=("--num-layers",)) == set()
    assert broken(pattern) == {25}
    assert broken("--hybrid-layer-pattern M|M|M", without=("--num-layers",)) == {25}
    assert 25 in broken(pattern, f"{FIRST} 4", without=("--num-layers",))


def test_26_deferred_weight_gradients_need_a_pipeline_and_fusion() -> None:
    late = "--defer-embedding-wgrad-compute"
    assert broken(late) == set()
    assert broken(late, "--pipeline-model-parallel-size 1") == {26}
    assert broken(late, "--no-gradient-accumulation-fusion") == {26}


def test_27_hybrid_context_parallelism() -> None:
    hybrid = ("--hybrid-context-parallel", "--calculate-per-token-loss")
    one = "--pipeline-model-parallel-size 1"
    assert broken(*hybrid, one) == set()
    assert broken(*hybrid) == {27}
    assert broken("--hybrid-context-parallel", one) == {27}
    assert broken(*hybrid, one, "--dataloader-type cyclic") == {27}
    assert broken(*hybrid, one, "--cuda-graph-impl local") == {27}


def test_28_predictions_and_hyper_connections() -> None:
    assert broken("--mtp-num-layers 1") == set()
    learned = "--position-embedding-type learned_absolute"
    assert broken("--mtp-num-layers 1", learned) == {28}
    assert broken("--enable-hyper-connections") == {28}
    overlap = ("--overlap-moe-expert-parallel-comm", "--num-virtual-stages-per-pipeline-rank 2")
    assert broken(*overlap, "--mtp-num-layers 2", base=EXPERTS) == {28}
