"""What was hidden is found, what nothing tells stays, and curves are left alone."""

from __future__ import annotations

import math

import pytest

from shardwright.cost_models.communication import INTER_NODE_RATIO, INTRA_NODE_RATIO
from shardwright.cost_models.compute import COMPUTE_RATIO
from shardwright.planner.trials.correction import OVERHEAD, correct
from shardwright.planner.trials.terms import Timed
from tests.planner.trials import made

HIDDEN = {COMPUTE_RATIO: 1.4, INTRA_NODE_RATIO: 2.0, INTER_NODE_RATIO: 0.7}


def test_hidden_ratios_are_found() -> None:
    timed = made.timed(HIDDEN, other_s=1e-4)
    found = correct(made.problem(), timed, source="a test")
    known = made.named(found.profile)
    for name, value in HIDDEN.items():
        assert known[name] == pytest.approx(value, rel=1e-3)
    assert known[OVERHEAD] == pytest.approx(1e-4)
    before, after, left_out = (
        found.median_error(timed, when) or 0.0 for when in ("before", "after", "left_out")
    )
    assert before > 0.05
    assert after < 1e-3
    assert left_out < 1e-3


def test_what_no_layout_does_stays() -> None:
    """One layout that stays inside its nodes tells nothing of the links between them."""
    alone = [one for one in made.timed(HIDDEN) if one.layout.pp == 2 and one.layout.tp == 2]
    inside = [one for one in alone if one.layout.dp == 1]
    found = correct(made.problem(), inside, source="a test")
    assert found.left_out_s is None
    assert made.named(found.profile)[COMPUTE_RATIO] == pytest.approx(1.4, rel=0.05)
    by_name = {one.name: one for one in found.changes}
    silent = [one for one in by_name.values() if one.spread is None and one.unit == "1"]
    assert all(one.after == one.before for one in silent)


def test_a_ratio_that_scatter_hides_stays_as_it_was() -> None:
    scales = (1.1, 1.1, 0.9, 0.9, 1.1, 0.9)
    timed = [
        Timed(one.layout, one.step_time_s * scale, one.terms_s)
        for one, scale in zip(made.timed({}), scales, strict=True)
    ]
    ratios = [
        one for one in correct(made.problem(), timed, source="a test").changes if one.unit == "1"
    ]
    assert any(one.spread is None for one in ratios)
    for one in ratios:
        moved = abs(math.log(one.after / one.before))
        assert moved == 0 if one.spread is None else moved >= 2 * one.spread


def test_a_profile_is_corrected_on_top_of_an_earlier_correction() -> None:
    before = made.problem(**{COMPUTE_RATIO: 1.3})
    found = correct(before, made.timed(HIDDEN), source="a second trial")
    changed = next(one for one in found.changes if one.name == COMPUTE_RATIO)
    assert changed.before == pytest.approx(1.3)
    assert changed.after == pytest.approx(1.4, rel=1e-3)
    origin = next(p for p in found.profile.parameters if p.name == COMPUTE_RATIO)
    assert "a second trial" in origin.fitted_from
    assert origin.kind == "derived"
    assert found.profile.curves == before.profile.curves


def test_one_layout_that_nothing_explains_does_not_decide() -> None:
    timed = made.timed(HIDDEN)
    odd = Timed(timed[3].layout, 3 * timed[3].step_time_s, timed[3].terms_s)
    found = correct(made.problem(), [*timed[:3], odd, *timed[4:]], source="a test")
    assert found.is_taken
    assert made.named(found.profile)[COMPUTE_RATIO] == pytest.approx(1.4, rel=0.05)


def test_what_would_not_predict_better_is_not_taken() -> None:
    """Layouts off by chance, in no way that the ratios could explain."""
    before = made.problem()
    scales = (1.05, 0.95, 0.95, 1.05, 0.95, 1.05)
    timed = [
        Timed(one.layout, one.step_time_s * scale, one.terms_s)
        for one, scale in zip(made.timed({}), scales, strict=True)
    ]
    found = correct(before, timed, source="a test")
    if found.is_taken:
        assert (found.median_error(timed, "left_out") or 0) < 0.05
    else:
        assert found.profile == before.profile
        assert found.after == found.before
        assert all(one.after == one.before for one in found.changes)
