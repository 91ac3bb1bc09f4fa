"""The answer over several groups is the best of all, its books add up, and shares are balanced."""

from __future__ import annotations

import math

import pytest

from shardwright.planner.heterogeneous.search import search_mixed
from shardwright.planner.problem import Constraints
from tests.planner.heterogeneous.small import every_layout, pricer_of, random_problem


@pytest.mark.parametrize("seed", range(50))
def test_the_best_is_that_of_all_layouts(seed: int) -> None:
    """Every layout of the stated space, priced whole as a user's own would be."""
    made, fixed = random_problem(seed)
    constraints, pricer = Constraints(fixed=fixed), pricer_of(made)
    best_s, count = math.inf, 0
    for layout in every_layout(made, constraints):
        prediction = pricer.predict(layout)
        count += 1
        if prediction.memory_verdict == "fits":
            best_s = min(best_s, prediction.step_time_s)
    result = search_mixed(made, constraints, pricer)
    assert result.certificate.optimal
    assert result.certificate.considered == count
    if not result.ranking:
        assert math.isinf(best_s)
        return
    found = result.ranking[0]
    assert found.prediction.step_time_s == pytest.approx(best_s, rel=1e-9)
    assert found.layout.violations(made.model, made.cluster, made.training) == []
    assert pricer.predict(found.layout) == found.prediction
