"""Layouts: what follows from the choices, and every broken rule at once."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from shardwright.specs import (
    ClusterSpec,
    InputError,
    Layout,
    Recompute,
    ScheduleName,
    Stage,
    TrainingSpec,
)
from shardwright.specs.layout import place_stages
from tests.specs.small import cluster, group, model, training


def layout(**choices: Any) -> Layout:
    return Layout.of(model(), training(), **choices)


def rules(candidate: Layout) -> list[str]:
    return [found.rule for found in candidate.violations(model(), cluster(), training())]


def test_a_valid_layout_has_no_violations() -> None:
    assert rules(layout(tp=2, pp=2, dp=2, sequence_parallel=True)) == []
    assert rules(layout(tp=4, dp=2, zero=3, micro_batch=4)) == []


def test_what_follows_from_the_choices() -> None:
    derived = layout(tp=2, pp=2, dp=2, micro_batch=2, zero=1)
    assert derived.num_microbatches == 2
    assert derived.zero_shard_degree == 2
    assert derived.schedule is ScheduleName.ONE_F_ONE_B
    assert [stage.layers for stage in derived.stages] == [(0, 2), (2, 4)]
    assert [stage.holds for stage in derived.stages] == [("embedding",), ("final_norm", "head")]
    assert derived.recompute == (Recompute(), Recompute())
    assert layout(dp=8).schedule is None
    assert layout(dp=8, schedule="gpipe").schedule is None


def test_boundaries_and_recompute_are_taken_as_given() -> None:
    uneven = layout(
        pp=3, boundaries=(1, 1), recompute=(Recompute(policy="full"), Recompute(), Recompute())
    )
    assert [stage.num_layers for stage in uneven.stages] == [1, 0, 3]
    assert uneven.recompute[0].policy == "full"


@pytest.mark.parametrize(
    ("choices", "rule", "nearest"),
    [
        ({"tp": 2, "dp": 2}, "world_size", "dp = 4"),
        ({"tp": 3, "dp": 2}, "world_size", "6 devices"),
        ({"dp": 8, "ep": 3}, "expert_grid", "etp x ep in [2, 4]"),
        ({"dp": 8, "num_microbatches": 2}, "batch", "num_microbatches = 1"),
        ({"tp": 4, "dp": 2, "micro_batch": 3}, "batch", "micro_batch in [2, 4]"),
        ({"tp": 8}, "attention_heads", "tp <= 4"),
        ({"dp": 8, "sequence_parallel": True}, "sequence_parallel", "sequence_parallel = false"),
        ({"dp": 8, "zero": 1, "zero_shard_degree": 3}, "zero_shard_degree", "one of [2, 4]"),
        ({"dp": 8, "zero_shard_degree": 2}, "zero_shard_degree", "zero_shard_degree = 1"),
        (
            {"pp": 2, "dp": 4, "vpp": 2, "schedule": "1f1b"},
            "schedule",
            "vpp = 1 or interleaved-1f1b",
        ),
        (
            {"pp": 2, "dp": 4, "vpp": 2, "schedule": "zb-h1"},
            "schedule",
            "vpp = 1 or interleaved-1f1b",
        ),
        ({"pp": 2, "dp": 4, "schedule": "interleaved-1f1b"}, "schedule", "vpp = 2 or 1f1b"),
        ({"pp": 2, "dp": 4, "schedule": "zb-v"}, "schedule", "vpp = 2"),
        ({"dp": 8, "vpp": 2}, "schedule", "vpp = 1"),
    ],
)
def test_each_rule_says_what_would_obey_it(
    choices: dict[str, Any], rule: str, nearest: str
) -> None:
    found = layout(**choices).violations(model(), cluster(), training())
    assert rule in [violation.rule for violation in found]
    (broken,) = [violation for violation in found if violation.rule == rule]
    assert broken.nearest == nearest
    assert nearest in str(broken)


def test_all_broken_rules_come_at_once() -> None:
    wrong = layout(tp=8, dp=3, micro_batch=5, sequence_parallel=True, zero_shard_degree=2)
    assert set(rules(wrong)) == {
        "world_size", "batch", "attention_heads", "zero_shard_degree",
    }  # fmt: skip


def test_sequences_longer_than_the_positions_are_refused() -> None:
    long = training().model_copy(update={"seq_len": 65})
    found = layout(dp=8).violations(model(), cluster(), long)
    assert [violation.rule for violation in found] == ["seq_len"]
    assert found[0].nearest == "seq_len <= 64"


def test_stages_must_hold_every_layer_and_block_once() -> None:
    good = layout(pp=2, dp=4)
    first, second = good.stages
    missing = good.model_copy(update={"stages": (first.model_copy(update={"holds": ()}), second)})
    assert rules(missing) == ["stage_blocks"]
    twice = good.model_copy(
        update={"stages": (first, second.model_copy(update={"layers": (1, 4)}))}
    )
    assert rules(twice) == ["stage_layers"]


def test_lists_that_do_not_match_the_stages_are_refused() -> None:
    value = layout(pp=2, dp=4).model_dump(mode="json")
    with pytest.raises(InputError, match="pp x vpp = 2 virtual stages, but 2 stages and 1 rec"):
        Layout.from_value(value | {"recompute": value["recompute"][:1]})


@pytest.mark.parametrize(
    ("schedule", "ranks"),
    [
        (ScheduleName.INTERLEAVED, [0, 1, 0, 1]),
        (ScheduleName.ZB_V, [0, 1, 1, 0]),
        (ScheduleName.DUALPIPE_V, [0, 1, 1, 0]),
    ],
)
def test_stages_sit_where_their_schedule_wants_them(
    schedule: ScheduleName, ranks: list[int]
) -> None:
    stages = place_stages([0, 1, 2, 3], 4, 2, schedule)
    assert [stage.rank for stage in stages] == ranks
    assert [stage.chunk for stage in stages] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("schedule", "vpp"),
    [("gpipe", 1), ("interleaved-1f1b", 2), ("zb-h2", 1), ("zb-v", 2), ("dualpipev", 2)],
)
def test_each_schedule_has_its_number_of_stages_per_rank(schedule: str, vpp: int) -> None:
    assert rules(layout(pp=2, dp=4, vpp=vpp, schedule=schedule)) == []


def test_stages_sit_where_their_schedule_puts_them() -> None:
    good = layout(tp=2, pp=2, dp=2)
    first, last = good.stages
    swapped = (first.model_copy(update={"rank": 1}), last.model_copy(update={"rank": 0}))
    assert rules(good.model_copy(update={"stages": swapped})) == ["stage_placement"] * 2
    custom = {"stages": swapped, "schedule": ScheduleName.CUSTOM}
    assert rules(good.model_copy(update=custom)) == []
    headless = (first.model_copy(update={"holds": ("embedding", "head")}), last)
    assert rules(good.model_copy(update={"stages": headless})) == ["stage_blocks"]


def test_a_stage_ends_after_it_starts() -> None:
    with pytest.raises(ValidationError, match="layers 3-2 end before they start"):
        Stage(stage=0, rank=0, chunk=0, layers=(3, 2))


def test_no_layout_has_more_ranks_than_there_are_devices() -> None:
    with pytest.raises(ValidationError, match="= 2097152 is more than 1048576 devices"):
        layout(tp=2**10, dp=2**11)


def test_a_schedule_is_no_longer_than_can_be_written_out() -> None:
    long = TrainingSpec(global_batch=2**15, seq_len=32)
    for pp, broken in ((1, []), (2, ["schedule_length"])):
        candidate = Layout.of(model(), long, pp=pp)
        found = candidate.violations(model(), ClusterSpec(name="x", groups=(group(1, pp),)), long)
        assert [violation.rule for violation in found] == broken
