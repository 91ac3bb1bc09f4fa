"""The estimate: it finds what was hidden, leans on its priors, and forgets what is taken away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from shardwright.cost_models.stacks.fit import Free, Observation, fit, predict, spreads
from shardwright.specs import Layout
from tests.cost_models.stacks.jobs import LAYOUTS, layout, parameters, stack

SCOPE = "stack:one"
WIDE = (
    Free("stack.compute_ratio", SCOPE, 1.0, 1.0),
    Free("stack.collective_ratio", SCOPE, 1.1, 1.0),
    Free("stack.hidden_fraction", SCOPE, 0.7, 2.0, is_fraction=True),
)
HIDDEN: dict[str, Any] = {"stack__compute_ratio": 1.35, "stack__collective_ratio": 1.8}


def observations(
    layouts: Sequence[Layout], scope: str = SCOPE, noise: Sequence[float] = (), **hidden: Any
) -> list[Observation]:
    """Steps measured on a machine with these numbers, times e^noise."""
    true, model = stack(**hidden), stack()
    errors = [*noise, *[0.0] * len(layouts)]
    return [
        Observation(
            model, one, true.step_time_s(one) * math.exp(error), parameters(), frozenset({scope})
        )
        for one, error in zip(layouts, errors, strict=False)
    ]


def error(
    made: list[Observation], free: Sequence[Free], z: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> float:
    measured = np.array([math.log(one.measured_s) for one in made])
    return float(np.abs(predict(made, free, z) - measured).max())


def test_hidden_numbers_are_found_again() -> None:
    made = observations(LAYOUTS, stack__hidden_fraction=0.3, **HIDDEN)
    found = fit(made, WIDE, noise=0.005)
    values = found.values(SCOPE)
    assert values["stack.compute_ratio"] == pytest.approx(1.35, rel=0.02)
    assert values["stack.collective_ratio"] == pytest.approx(1.8, rel=0.05)
    assert values["stack.hidden_fraction"] == pytest.approx(0.3, abs=0.05)
    assert error(made, WIDE, found.z) < 0.01


def test_one_run_already_moves_its_neighbours_toward_the_truth() -> None:
    free = (Free("stack.compute_ratio", SCOPE, 1.0, 0.15),)
    made = observations(LAYOUTS, **HIDDEN)
    start = np.array([free[0].scaled(1.0)])
    found = fit(made[:1], free)
    before = predict(made, free, start)
    after = predict(made, free, found.z)
    measured = np.array([math.log(one.measured_s) for one in made])
    assert (np.abs(after - measured) < np.abs(before - measured)).all()


def test_priors_rule_where_nothing_was_measured() -> None:
    other = Free("stack.compute_ratio", "stack:two", 1.4, 0.1)
    found = fit(observations(LAYOUTS[:3], **HIDDEN), (*WIDE, other))
    assert found.values("stack:two") == {"stack.compute_ratio": pytest.approx(1.4)}


def test_a_narrow_prior_holds_against_one_run() -> None:
    made = observations(LAYOUTS[:1], stack__compute_ratio=2.0)
    found = [
        fit(made, (Free("stack.compute_ratio", SCOPE, 1.0, spread),)).values(SCOPE)
        for spread in (0.001, 0.1, 10.0)
    ]
    ratios = [values["stack.compute_ratio"] for values in found]
    assert ratios == sorted(ratios)
    assert ratios[0] == pytest.approx(1.0, abs=0.01)
    assert ratios[2] == pytest.approx(2.0, abs=0.05)


def test_a_run_that_went_wrong_counts_for_little() -> None:
    noise = [0.0] * 5 + [1.0]
    free = (Free("stack.compute_ratio", SCOPE, 1.0, 1.0),)
    made = observations(
        [*LAYOUTS[:5], layout(dp=32, zero=2)], noise=noise, stack__compute_ratio=1.35
    )
    with_it = fit(made, free).values(SCOPE)["stack.compute_ratio"]
    without = fit(made[:5], free).values(SCOPE)["stack.compute_ratio"]
    mean = without * math.exp(1.0 / 6)
    assert abs(with_it - without) < 0.5 * abs(mean - without)


def test_weights_say_how_much_a_run_counts() -> None:
    free = (Free("stack.compute_ratio", SCOPE, 1.0, 1.0),)
    low = observations([layout(dp=32)], stack__compute_ratio=1.0)
    high = observations([layout(dp=32)], stack__compute_ratio=1.1)
    ratios = []
    for weight in (0.1, 1.0, 10.0):
        high[0].weight = weight
        ratios.append(fit([*low, *high], free).values(SCOPE)["stack.compute_ratio"])
    assert ratios == sorted(ratios)
    assert ratios[0] < 1.03
    assert ratios[2] > 1.07


def test_taking_runs_away_is_a_new_fit_to_first_order() -> None:
    noise = [0.03, -0.02, 0.05, -0.04, 0.01, 0.02, -0.03, 0.04, -0.05, 0.0, 0.03, -0.01, 0.02]
    free = WIDE[:2]
    made = observations(LAYOUTS, noise=noise, **HIDDEN)
    whole = fit(made, free)
    kept = np.array([index not in (2, 5) for index in range(len(made))])
    again = fit([one for one, is_kept in zip(made, kept, strict=True) if is_kept], free)
    moved = np.abs(again.z - whole.z).max()
    assert moved > 0.003
    assert np.abs(whole.without(kept) - again.z).max() < 0.15 * moved


def test_what_stays_fixed_stays() -> None:
    made = observations(LAYOUTS, noise=[0.1, -0.1], **HIDDEN)
    whole = fit(made, WIDE[:2])
    kept = np.array([index > 3 for index in range(len(made))])
    moved = whole.without(kept, columns=[1])
    assert moved[0] == whole.z[0]
    assert moved[1] != whole.z[1]


def test_scopes_share_what_is_common_and_no_more() -> None:
    free = (
        Free("stack.compute_ratio", SCOPE, 1.0, 1.0),
        Free("stack.compute_ratio", "stack:two", 1.0, 1.0),
    )
    made = observations(LAYOUTS[:4], stack__compute_ratio=1.2)
    made += observations(LAYOUTS[:4], scope="stack:two", stack__compute_ratio=1.6)
    found = fit(made, free, noise=0.005)
    assert found.values(SCOPE)["stack.compute_ratio"] == pytest.approx(1.2, rel=0.01)
    assert found.values("stack:two")["stack.compute_ratio"] == pytest.approx(1.6, rel=0.01)


@pytest.mark.parametrize("is_fraction", [True, False])
def test_scales_have_inverses(is_fraction: bool) -> None:
    free = Free("x", "all", 0.5, 1.0, is_fraction)
    for value in (0.01, 0.5, 0.99):
        assert free.value(free.scaled(value)) == pytest.approx(value)


def test_spreads_shrink_for_what_was_measured_and_stay_the_prior_s_for_the_rest() -> None:
    other = Free("stack.compute_ratio", "stack:two", 1.4, 0.1)
    free = (Free("stack.compute_ratio", SCOPE, 1.0, 0.3), other)
    one, many = (fit(observations(LAYOUTS[:n], **HIDDEN), free) for n in (1, len(LAYOUTS)))
    assert spreads(many)[0] < spreads(one)[0] < 0.3
    assert spreads(many)[1] == pytest.approx(0.1)
