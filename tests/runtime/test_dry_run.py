"""A dry run of whole plans: which ranks, what is refused, what is noted."""

from __future__ import annotations

import pytest

from shardwright.runtime.dry_run import dry_run, ranks_of
from shardwright.runtime.fake_world import fake_rank
from shardwright.specs import InputError
from tests.runtime.plans import plan_of, training_of


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0", (0,)),
        ("0,last", (0, 15)),
        (" last , 3-5,4", (3, 4, 5, 15)),
        ("13-last", (13, 14, 15)),
    ],
)
def test_ranks_by_name(text: str, ranks: tuple[int, ...]) -> None:
    assert ranks_of(text, 16) == ranks


@pytest.mark.parametrize("text", ["", "-1", "first", "1;2", "16", "5-3", "last-3", "1-16", "0x1"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--rank is"):
        ranks_of(text, 16)


def test_each_rank_is_told_before_it_is_built() -> None:
    told: list[int] = []
    report = dry_run(plan_of(tp=2, dp=4, zero=1), [1, 6], on_rank=told.append)
    assert told == [1, 6]
    assert [(one.rank, one.tp, one.dp, one.pp) for one in report.ranks] == [
        (1, 1, 0, 0), (6, 0, 3, 0),
    ]  # fmt: skip
    assert report.differences == ()
    assert "was not checked" in report.notes[-1]


def test_all_that_the_runtime_lacks_is_listed_at_once() -> None:
    plan = plan_of(pp=2, dp=2, cp=2, loss_chunks=4)
    with pytest.raises(InputError) as caught:
        dry_run(plan, [0])
    for words in ("cp = 2", "loss_chunks = 4"):
        assert str(caught.value).count(words) == 1


def test_a_stage_with_a_layer_twice_is_refused() -> None:
    plan = plan_of(pp=2, dp=2)
    stages = tuple(
        stage.model_copy(update={"layers": (0, 3)}) if stage.stage == 0 else stage
        for stage in plan.layout.stages
    )
    altered = plan.model_copy(update={"layout": plan.layout.model_copy(update={"stages": stages})})
    with pytest.raises(InputError, match="the stages hold 5 layers"):
        dry_run(altered, [0])


def test_micro_batches_that_do_not_make_the_batch_are_refused() -> None:
    plan = plan_of(pp=2, dp=2)
    layout = plan.layout.model_copy(update={"micro_batch": 2})
    with pytest.raises(InputError, match="is not global_batch = 8"):
        dry_run(plan.model_copy(update={"layout": layout}), [0])


def test_not_within_a_real_launch() -> None:
    with fake_rank(0, 2), pytest.raises(InputError, match="a process without process groups"):
        dry_run(plan_of(dp=2), [0])


def test_a_world_of_16384() -> None:
    plan = plan_of(training=training_of(global_batch=8192), tp=2, pp=2, dp=4096, zero=1)
    assert plan.layout.world == 16_384
    assert dry_run(plan, [16_383]).differences == ()
