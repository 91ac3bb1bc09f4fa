"""One choice of everything, and the layout that it makes."""

from __future__ import annotations

from dataclasses import replace

from shardwright.planner.stacks.choices import Cut, Grid, Pipeline, StackChoices
from tests.planner.stacks.small import problem

CHOICES = StackChoices(
    Grid(2, 1, 2, 2, 1, 2), Cut(True, "ring", 2, 2), 1, "full", Pipeline("zb-v", 2), "even"
)


def test_the_layout_has_every_choice() -> None:
    made = problem(gpus=8)
    layout = CHOICES.layout(made, (1, 2, 3), {"loss_chunks": 2})
    assert layout.violations(made.model, made.cluster, made.training) == []
    assert (layout.tp, layout.pp, layout.vpp, layout.dp, layout.ep, layout.etp) == (
        2,
        2,
        2,
        2,
        2,
        2,
    )
    assert (layout.zero, layout.schedule, layout.loss_chunks) == (1, "zb-v", 2)
    assert layout.sequence_parallel
    assert {entry.policy for entry in layout.recompute} == {"full"}
    assert [stage.layers for stage in layout.stages] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_plainer_choices_have_smaller_keys() -> None:
    for change in ({"zero": 0}, {"recompute": "none"}, {"pipeline": Pipeline("1f1b", 1)},
                   {"split": "balanced"}, {"cut": Cut(True, "ring", 1, 1)}):  # fmt: skip
        assert replace(CHOICES, **change).key < CHOICES.key
