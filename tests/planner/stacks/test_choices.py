"""One choice of everything, and the layout that it makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardwright.planner.stacks.choices import Cut, Grid, Leaf, Pipeline, StackChoices, State
from tests.planner.stacks.small import problem

STATE = State(1, 2, 1, True, "optimizer", "tp-cp-pp-dp")
CHOICES = StackChoices(
    Grid(2, 1, 2, 2, 1, 2), Cut(True, "ring", 2, 2), STATE, Pipeline("zb-v", 2), 2, (2, 3, 5),
    ("none", "full:1", "none", "full"),
)  # fmt: skip


def test_the_layout_has_every_choice() -> None:
    made = problem(gpus=8)
    layout = CHOICES.layout(made, {})
    assert layout.violations(made.model, made.cluster, made.training) == []
    assert (layout.tp, layout.pp, layout.vpp, layout.dp, layout.ep, layout.etp) == (2,) * 6
    assert (layout.zero, layout.schedule, layout.loss_chunks) == (1, "zb-v", 2)
    assert (layout.zero_shard_degree, layout.offload) == (2, ("optimizer",))
    assert layout.rank_order == "tp-cp-pp-dp"
    assert layout.sequence_parallel
    assert [entry.policy for entry in layout.recompute] == ["none", "full", "none", "full"]
    assert [stage.layers for stage in layout.stages] == [(0, 1), (1, 2), (2, 4), (4, 4)]


@pytest.mark.parametrize(
    "change",
    [
        {"state": STATE._replace(zero=0)}, {"state": STATE._replace(offload="none")},
        {"recompute": ("none",) * 4}, {"pipeline": Pipeline("1f1b", 1)},
        {"cut": Cut(True, "ring", 1, 1)}, {"loss_chunks": 1},
        {"state": STATE._replace(rank_order="tp-cp-dp-pp")},
    ],
)  # fmt: skip
def test_plainer_choices_have_smaller_keys(change: dict[str, Any]) -> None:
    assert replace(CHOICES, **change).key < CHOICES.key


def test_a_leaf_is_all_but_boundaries_and_recomputation() -> None:
    moved = replace(CHOICES, starts=(1, 2, 3), recompute=("full",) * 4, loss_chunks=1)
    assert moved.leaf == CHOICES.leaf == Leaf(*CHOICES.leaf)
    assert moved.leaf.is_split
    assert not moved.leaf._replace(pipeline=Pipeline("1f1b", 1)).is_split
