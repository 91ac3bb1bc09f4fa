"""What is said of unequal devices, and of simpler uses of them."""

from __future__ import annotations

from shardwright.planner.heterogeneous.words import (
    baselines_in_words,
    devices_in_words,
    num_groups,
)
from shardwright.specs import Baseline, Candidate
from tests.planner.heterogeneous.test_engine import TWO_SITES, UNEQUAL, planned


def test_each_rank_is_named_with_its_devices_and_memory() -> None:
    found = planned(UNEQUAL, 512)
    lines = list(devices_in_words(found))
    assert len(lines) >= found.layout.num_pipeline_ranks
    assert "8 x" in lines[0]
    assert any("of 78.7 GiB" in line for line in lines)
    assert any("of 29.3 GiB" in line for line in lines)


def test_idle_devices_are_counted() -> None:
    lines = list(devices_in_words(planned(TWO_SITES, 64)))
    assert lines[-1] == "8 of 16 devices are not used"


def test_a_layout_without_grids_of_its_own_says_nothing() -> None:
    found = planned(UNEQUAL, 512)
    plain = found.model_copy(
        update={"layout": found.layout.model_copy(update={"stage_meshes": None})}
    )
    assert list(devices_in_words(plain)) == []


def test_a_simpler_use_is_slower_or_impossible_or_the_plan() -> None:
    found = planned(UNEQUAL, 512)
    chosen = Candidate(layout=found.layout, prediction=found.prediction)
    baselines = (
        Baseline(name="only these", candidate=chosen),
        Baseline(name="only those", reason="nothing fits"),
    )
    lines = list(baselines_in_words(found.model_copy(update={"baselines": baselines})))
    assert "this is the plan" in lines[0]
    assert lines[1].startswith("  over several groups nothing")
    assert lines[2] == "only those: not possible: nothing fits"
    assert num_groups(found, found.layout) == 2
