"""Scores of a replay on examples that are worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.replay_facts import Trial
from benchmarks.replay_scores import (
    Counted,
    Grid,
    MeanSummary,
    Summary,
    best_of,
    by_problem,
    chance_regrets,
    fate_of,
    micro_batch_pairs,
    order_by_difference,
    regret_of,
    rule_pick,
    rule_regrets,
    start_up_gpu_hours,
    sweep_gpu_hours,
    within_sections,
)
from shardwright.planner.validation.results import RowResult
from shardwright.planner.validation.rows import Row


def trial(
    seconds: float | None, tp: int = 8, pp: int = 6, micro_batch: int = 4, *, section: str = "s",
    problem: str = "p", batch: int = 100,
) -> Trial:  # fmt: skip
    row = Row.model_validate({
        "id": f"{problem} {tp} {pp} {micro_batch} {seconds}", "problem": problem,
        "status": "ok" if seconds else "oom", "hardware": {"gpus": 96},
        "parallel": {"tp": tp, "pp": pp, "dp": 96 // tp // pp, "micro_batch": micro_batch,
                     "global_batch": batch},
        "measured": {"iteration_time_s": seconds},
    })  # fmt: skip
    return Trial(section, "2022-02-20", "1B", False, row)


def result(one: Trial, predicted_s: float) -> RowResult:
    return RowResult(
        id=one.row.id, stack=None, accelerator=None, problem=one.row.problem, configuration=None,
        is_full=True, measured_step_time_s=one.row.step_time_s, measured_peak_memory_bytes=None,
        memory_kind="device", measured_oom=one.row.is_oom, is_fragmentation=False,
        predicted_step_time_s=predicted_s,
    )  # fmt: skip


class TestRegret:
    def test_of_the_fastest_it_is_nothing(self) -> None:
        trials = [trial(100.0), trial(120.0, pp=12)]
        assert best_of(trials) is trials[0]
        assert regret_of(trials[0], trials) == 0.0
        assert regret_of(trials[1], trials) == pytest.approx(0.2)

    def test_a_trial_that_ran_out_of_memory_is_never_the_best(self) -> None:
        assert best_of([trial(None)]) is None
        assert best_of([trial(None), trial(50.0, tp=4)]) is not None

    def test_chance_is_the_mean_of_a_shape(self) -> None:
        trials = [trial(100.0), trial(120.0, pp=12), trial(140.0, pp=3), trial(7.0, problem="q")]
        assert list(chance_regrets(trials)) == pytest.approx([0.2])


class TestTp8First:
    def test_most_tp_then_fewest_stages_then_largest_micro_batch(self) -> None:
        trials = [
            trial(1.0, tp=4, pp=2, micro_batch=8), trial(2.0, pp=12, micro_batch=8),
            trial(3.0, pp=6, micro_batch=2), trial(4.0, pp=6, micro_batch=4), trial(None, pp=1),
        ]  # fmt: skip
        assert rule_pick(trials) is trials[3]
        assert list(rule_regrets(trials)) == pytest.approx([3.0])

    def test_tp_does_not_leave_the_node(self) -> None:
        trials = [trial(1.0, tp=16), trial(2.0, tp=4)]
        assert rule_pick(trials) is trials[1]

    def test_a_shape_of_one_trial_is_no_choice(self) -> None:
        assert rule_regrets([trial(1.0), trial(None, pp=1)]) == ()


class TestOrder:
    def test_sections_compare_seconds_a_sequence_of_clear_pairs(self) -> None:
        trials = [
            trial(100.0), trial(120.0, pp=12), trial(103.0, pp=3),
            trial(55.0, batch=50, problem="q"), trial(500.0, section="t", problem="r"),
        ]  # fmt: skip
        predicted = [90.0, 95.0, 80.0, 60.0, 1.0]
        results = [result(*pair) for pair in zip(trials, predicted, strict=True)]
        # A sequence: 1.0, 1.2, 1.03, 1.1 s measured; 0.9, 0.95, 0.8, 1.2 s predicted. Clear: 1.2
        # against each other one and 1.1 against 1.0 and 1.03, of which 1.2 against 1.1 is wrong.
        assert within_sections(trials, results) == Counted(4, 5)

    def test_pairs_are_told_apart_by_what_differs(self) -> None:
        trials = [trial(100.0), trial(120.0, micro_batch=2), trial(140.0, pp=12),
                  trial(200.0, tp=4)]  # fmt: skip
        predicted = {one.row.id: s for one, s in zip(trials, (1.0, 0.9, 2.0, 3.0), strict=True)}
        assert order_by_difference(trials, predicted) == {
            "tp": Counted(3, 3), "pp": Counted(2, 2), "micro-batch": Counted(0, 1),
        }  # fmt: skip

    def test_pairs_of_micro_batches_need_all_else_equal(self) -> None:
        small, large = trial(2.0, micro_batch=2), trial(1.0, micro_batch=4)
        others = [trial(1.0, pp=12), trial(1.0, tp=4, micro_batch=2), trial(1.0, tp=4)]
        assert micro_batch_pairs([small, *others, large], 2, 4) == [(small, large)]

    def test_in_words(self) -> None:
        assert str(Counted(3, 4)) == "3 of 4 (75%)"
        assert str(Counted(0, 0)) == "0 of 0"


class TestFate:
    def test_where_a_plan_lies_among_the_trials(self) -> None:
        trials = [trial(100.0), trial(120.0, pp=12), trial(None, pp=3)]
        second = fate_of(Grid(8, 12, 1, 4), trials)
        assert (second.rank, second.num_timed) == (2, 2)
        assert not second.ran_out_of_memory
        assert fate_of(Grid(8, 3, 4, 4), trials).ran_out_of_memory
        unknown = fate_of(Grid(4, 6, 4, 4), trials)
        assert unknown.tried is None
        assert not unknown.ran_out_of_memory

    def test_a_grid_is_read_from_a_row(self) -> None:
        assert str(Grid.of(trial(1.0).row.parallel)) == "tp8 pp6 dp2 mb4"


def test_the_sweep_took_two_steps_of_each_trial_that_ran() -> None:
    trials = [trial(1800.0), trial(None)]
    assert sweep_gpu_hours(trials) == pytest.approx(2 * 0.5 * 96)
    assert start_up_gpu_hours(trials) == pytest.approx(2 * 96 / 60)


def test_trials_are_grouped_by_job() -> None:
    trials = [trial(1.0), trial(2.0, problem="q"), trial(3.0, pp=1)]
    assert by_problem(trials) == {"p": [trials[0], trials[2]], "q": [trials[1]]}


def test_means_over_choices_weigh_pairs_and_picks_alike() -> None:
    one = Summary(0.1, 0.2, -0.1, 1.0, Counted(1, 1), Counted(1, 2), (0.0, 0.1))
    other = Summary(0.3, 0.4, 0.3, 0.0, Counted(0, 3), Counted(1, 2), (0.2,))
    mean = MeanSummary.of([one, other])
    assert (mean.num_choices, mean.worst_regret) == (2, 0.2)
    assert mean.median_error == pytest.approx(0.2)
    assert mean.bias == pytest.approx(0.1)
    assert mean.within_shapes == pytest.approx(0.25)
    assert mean.best == pytest.approx(1 / 3)
    assert mean.mean_regret == pytest.approx(0.1)
    assert one.mean_regret == pytest.approx(0.05)
    assert one.num_best == 1
