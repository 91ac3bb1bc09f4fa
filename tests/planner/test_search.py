"""The search against exhaustive simulation."""

from __future__ import annotations

import itertools
import math

import pytest

from shardwright.planner.bounds import Pricer
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.search import search
from shardwright.planner.space import Space


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
def test_certified_step_equals_exhaustive_simulation(make_problem, make_costs, seed, capacity_mb):
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
