from __future__ import annotations

from collections.abc import Mapping

import pytest

from shardwright.planner.validation.choose import Choice, choose
from shardwright.specs import InputError, Layout, Prediction
from tests.planner.validation.fakes import CAPACITY, prediction
from tests.planner.validation.test_candidates import layouts

OPEN = [one for one in layouts(parallel={"recompute": None}) if one.recompute[0].modules is None]
"""One for each policy."""


class Listed:
    """Knows the prices of some layouts by their recompute policy."""

    def __init__(self, prices: Mapping[str, Prediction]) -> None:
        self.prices = prices

    def predict(self, layout: Layout) -> Prediction:
        policy = layout.recompute[0].policy
        if policy not in self.prices:
            raise InputError(f"{policy} is not priced")
        return self.prices[policy]


def chosen(prices: Mapping[str, Prediction]) -> tuple[str, Choice]:
    choice = choose(Listed(prices), OPEN)
    return choice.layout.recompute[0].policy, choice


def test_the_cheapest_that_fits_wins() -> None:
    prices = {
        "none": prediction(1.0, peaks=(2 * CAPACITY,)),
        "selective": prediction(3.0, peaks=(50,), fixed=0),
        "full": prediction(2.0, verdict="edge"),
    }
    policy, choice = chosen(prices)
    assert (policy, choice.fits, choice.is_at_risk, choice.num_open) == ("full", True, True, 3)


def test_where_none_fits_the_one_nearest_to_it_wins() -> None:
    prices = {
        "none": prediction(1.0, peaks=(3 * CAPACITY,)),
        "full": prediction(2.0, peaks=(1, 2 * CAPACITY), fixed=0),
    }
    policy, choice = chosen(prices)
    assert (policy, choice.fits, choice.is_at_risk) == ("full", False, True)


def test_ties_go_to_the_first() -> None:
    policy, choice = chosen({"selective": prediction(2.0), "full": prediction(2.0)})
    assert (policy, choice.is_at_risk) == ("selective", False)


def test_what_nothing_prices_says_why() -> None:
    with pytest.raises(InputError, match="none is not priced"):
        choose(Listed({}), OPEN)


def test_spares_are_for_where_nothing_else_fits() -> None:
    small, large = prediction(2.0), prediction(1.0, peaks=(2 * CAPACITY,))
    first, *spares = OPEN
    fitting = choose(Listed({"none": small, "full": prediction(1.0)}), [first], spares)
    assert fitting.layout is first
    spare = choose(Listed({"none": large, "full": small}), [first], spares)
    assert spare.layout is OPEN[2]
    assert spare.fits
    neither = choose(Listed({"none": large, "full": large}), [first], spares)
    assert neither.layout is first
    assert not neither.fits
