"""The search against exhaustive simulation."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from shardwright.cost_models.pipeline.schedules import build_schedule
from shardwright.hardware_profiles.profile import Parameter
from shardwright.planner.bounds import Pricer, UnitBytes, UnitSeconds
from shardwright.planner.choices import Choices
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.search import dominator, search
from shardwright.planner.space import Space
from shardwright.specs import Layout, Prediction
from tests.planner.conftest import CostsFactory, ProblemFactory


def exhaustive(problem: Problem, constraints: Constraints, pricer: Pricer) -> tuple[float, int]:
    """The best step of all that fits, and how many layouts fit, by simulating every layout."""
    best, fitting = math.inf, 0
    for choices in Space(problem, constraints).valid:
        for cut in itertools.combinations(range(problem.num_layers + 1), choices.pp - 1):
            prediction = pricer.predict(choices.layout(problem, cut))
            if prediction.memory_verdict != "does_not_fit":
                best, fitting = min(best, prediction.step_time_s), fitting + 1
    return best, fitting


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("capacity_mb", [1000, 90, 45])
def test_certified_step_equals_exhaustive_simulation(
    make_problem: ProblemFactory, make_costs: CostsFactory, seed: int, capacity_mb: int
) -> None:
    problem = make_problem(num_layers=4, num_devices=4, global_batch=8)
    pricer = make_costs(problem, seed, capacity_mb * 10**6)
    constraints = Constraints()
    best, fitting = exhaustive(problem, constraints, pricer)
    result = search(problem, constraints, pricer)
    certificate = result.certificate
    assert certificate.optimal
    assert certificate.considered == (
        certificate.excluded_by_rules + certificate.excluded_by_memory
        + certificate.excluded_by_bound + certificate.excluded_by_dominance
        + certificate.simulated
    )  # fmt: skip
    if fitting == 0:
        assert result.ranking == ()
    else:
        assert result.ranking[0].step_s == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fixed", [{"pp": 2}, {"pp": 4}, {"pp": 2, "schedule": "gpipe"}])
def test_pipelines_of_unequal_stages_equal_exhaustive_simulation(
    make_problem: ProblemFactory, make_costs: CostsFactory, seed: int, fixed: dict[str, Any]
) -> None:
    """Where a pipeline is forced, boundaries decide, and the costs of every unit differ."""
    problem = make_problem(num_layers=6, num_devices=4, global_batch=8)
    constraints = Constraints(fixed=fixed)
    pricer = make_costs(problem, seed, 70 * 10**6)
    best, fitting = exhaustive(problem, constraints, pricer)
    result = search(problem, constraints, pricer)
    assert fitting
    assert result.certificate.optimal
    assert result.ranking[0].step_s == pytest.approx(best, rel=1e-9)
    assert result.certificate.simulated < fitting


def test_a_dominated_schedule_is_kept_where_its_dominator_is_ruled_out(
    make_problem: ProblemFactory, make_costs: CostsFactory
) -> None:
    problem = make_problem()
    one_micro_batch = {"pp": 2, "num_microbatches": 1}
    for forbidden in ({"1f1b"}, set()):
        constraints = Constraints(fixed=one_micro_batch, forbidden=frozenset(forbidden))
        result = search(problem, constraints, make_costs(problem, 1))
        assert (result.certificate.excluded_by_dominance == 0) == bool(forbidden)
        assert result.ranking[0].choices.schedule == ("gpipe" if forbidden else "1f1b")


@pytest.mark.parametrize("pp", [2, 3, 5])
def test_a_dominated_schedule_is_the_schedule_that_dominates_it(pp: int) -> None:
    choices = Choices(1, pp, 1, 1, 1, 0, False, "none", "gpipe")
    better = dominator(choices)
    assert better is not None
    schedules = [
        build_schedule(one.schedule, pp=pp, num_micro_batches=1) for one in (choices, better)
    ]
    assert schedules[0].ranks == schedules[1].ranks
    assert better.key < choices.key
    assert dominator(replace(choices, num_microbatches=2)) is None


def test_equally_fast_layouts_give_the_plainest(
    make_problem: ProblemFactory, make_costs: CostsFactory
) -> None:
    """Without any difference in cost between ZeRO stages, none is used."""
    problem = make_problem()

    class Same(make_costs):  # type: ignore[misc, valid-type]
        def unit_seconds(self, choices: Choices) -> UnitSeconds:
            plain = replace(choices, zero=0, recompute="none", sequence_parallel=False)
            seconds: UnitSeconds = super().unit_seconds(plain)
            return seconds

    best = search(problem, Constraints(fixed={"dp": 4}), Same(problem, 1)).ranking[0]
    assert (best.choices.zero, best.choices.recompute) == (0, "none")


def test_fixed_boundaries_are_the_only_ones(
    make_problem: ProblemFactory, make_costs: CostsFactory
) -> None:
    problem = make_problem(num_layers=4)
    result = search(problem, Constraints(fixed={"stages": "0-1/1-4"}), make_costs(problem, 1))
    for priced in result.ranking:
        assert [stage.layers for stage in priced.layout.stages] == [(0, 1), (1, 4)]
    too_small = search(
        problem, Constraints(fixed={"stages": "0-1/1-4"}), make_costs(problem, 1, 10**6)
    )
    assert too_small.ranking == ()
    certificate = too_small.certificate
    assert certificate.excluded_by_memory + certificate.excluded_by_dominance == (
        certificate.considered - certificate.excluded_by_rules
    )


def test_a_search_that_is_stopped_states_its_gap(
    make_problem: ProblemFactory, make_costs: CostsFactory
) -> None:
    """The first layout found is worse than the best, because the bound ignores shared work."""
    problem = make_problem()

    class Vague(make_costs):  # type: ignore[misc, valid-type]
        def predict(self, layout: Layout) -> Prediction:
            made: Prediction = super().predict(layout)
            slower = made.step_time_s * (2 + layout.tp)
            return made.model_copy(update={"step_time_s": slower})

    pricer = Vague(problem, 1)
    best, _ = exhaustive(problem, Constraints(), pricer)
    stopped = search(problem, Constraints(time_limit_s=1e-9), pricer)
    assert not stopped.certificate.optimal
    assert 0 < stopped.certificate.gap < 1
    assert best >= stopped.ranking[0].step_s * (1 - stopped.certificate.gap)
    finished = search(problem, Constraints(), pricer)
    assert finished.certificate.optimal
    assert finished.ranking[0].step_s == pytest.approx(best, rel=1e-9)


def test_layouts_too_close_to_tell_apart_are_ties(
    make_problem: ProblemFactory, make_costs: CostsFactory
) -> None:
    problem = make_problem()
    spread = Parameter(name="tie.ratio", value=1.1, unit="1", kind="user", fitted_from="test")
    profile = problem.profile.model_copy(update={"parameters": (spread,)})
    problem = replace(problem, profile=profile)
    result = search(problem, Constraints(top=6), make_costs(problem, 2))
    best = result.ranking[0]
    assert result.ties
    assert best not in result.ties
    assert all(tie.step_s <= 1.1 * best.step_s for tie in result.ties)
    within = [priced for priced in result.ranking[1:] if priced.step_s <= 1.1 * best.step_s]
    assert set(map(id, within)) <= set(map(id, result.ties))


def test_stages_that_turn_out_too_big_are_not_tried_again(
    make_problem: ProblemFactory, make_costs: CostsFactory
) -> None:
    """Memory bounds say that everything fits; predictions know better."""
    problem = make_problem(num_layers=9, num_devices=3, global_batch=6)
    capacity_bytes = 80 * 10**6
    predicted = []

    class Vague(make_costs):  # type: ignore[misc, valid-type]
        def unit_bytes(self, choices: Choices) -> UnitBytes:
            held: UnitBytes = super().unit_bytes(choices)
            return replace(held, state=held.state * 0, saved=held.saved * 0, peak=held.peak * 0)

        def predict(self, layout: Layout) -> Prediction:
            predicted.append(layout)
            made: Prediction = make_costs.predict(exact, layout)
            return made

    exact = make_costs(problem, 4, capacity_bytes)
    constraints = Constraints(fixed={"pp": 3, "micro_batch": 1, "schedule": "1f1b"})
    best, fitting = exhaustive(problem, constraints, exact)
    result = search(problem, constraints, Vague(problem, 4, capacity_bytes))
    certificate = result.certificate
    assert certificate.optimal
    assert result.ranking[0].step_s == pytest.approx(best, rel=1e-9)
    assert certificate.considered - certificate.excluded_by_rules == (
        certificate.excluded_by_memory + certificate.excluded_by_bound + certificate.simulated
    )
    in_all = certificate.considered - certificate.excluded_by_rules
    assert 0 < certificate.excluded_by_memory <= in_all - fitting
    assert certificate.simulated < len(predicted) < certificate.excluded_by_memory
