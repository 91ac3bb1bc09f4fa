"""Sums of units are the prices of stages, and never above them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from shardwright.planner.heterogeneous.layouts import ChosenSet, set_layout
from shardwright.planner.heterogeneous.space import Segment, SetChoice
from shardwright.planner.heterogeneous.units import Shape, UnitPrices
from tests.planner.heterogeneous.small import FAST, SLOW, nodes, pricer_of, problem
from tests.planner.stacks.small import moe_model

MADE = problem(nodes(FAST), nodes(SLOW), model=moe_model(), global_batch=8)
SHAPES = [(1, 2, 1, 0, "none"), (2, 1, 1, 0, "full"), (1, 2, 2, 3, "none"), (1, 2, 1, 1, "full")]


@pytest.mark.parametrize(("tp", "dp", "ep", "zero", "policy"), SHAPES)
def test_a_stage_is_the_sum_of_its_units(tp: int, dp: int, ep: int, zero: int, policy: str) -> None:
    pricer = pricer_of(MADE)
    prices = UnitPrices(MADE, pricer)
    segments = (Segment(0, tp, 1, policy), Segment(1, tp, 1, policy))
    choice = SetChoice(segments, dp, 1, ep, zero)
    for start in range(1, MADE.num_units):
        part = set_layout(MADE, ChosenSet(choice, (start,), 4))
        edges = itertools.pairwise((0, start, MADE.num_units))
        for group, (stage, (i, k)) in enumerate(zip(pricer.stages_of(part), edges, strict=True)):
            shape = Shape(group, tp, dp, ep, 1, zero, policy)
            found = prices.table(shape, in_pipeline=True).matrix[i, k]
            whole_s = stage.forward_s + stage.backward_input_s + stage.backward_weight_s
            assert found <= whole_s
            assert found == pytest.approx(whole_s, rel=0.02)
            assert prices.optimizer_s(shape) >= stage.optimizer_s * (1 - 1e-6)


@pytest.mark.parametrize(("tp", "dp", "ep", "zero", "policy"), SHAPES)
def test_what_fits_is_never_ruled_out(tp: int, dp: int, ep: int, zero: int, policy: str) -> None:
    segments = (Segment(0, tp, 1, policy), Segment(1, tp, 1, policy))
    choice, seen = SetChoice(segments, dp, 1, ep, zero), set()
    part = set_layout(MADE, ChosenSet(choice, (3,), 4))
    most = max(one.total_bytes for one in pricer_of(MADE).memory(part)[0])
    for usable in (int(most * ratio) for ratio in (0.3, 0.9, 1.1, 1.2, 1.5)):
        groups = nodes(FAST, usable_bytes=usable), nodes(SLOW, usable_bytes=usable)
        made = problem(*groups, model=moe_model(), global_batch=8)
        pricer = pricer_of(made)
        prices = UnitPrices(made, pricer)
        for start in range(1, made.num_units):
            part = set_layout(made, ChosenSet(choice, (start,), 4))
            fits = pricer.memory(part)[1] == "fits"
            allowed = all(
                prices.memory(Shape(index, tp, dp, ep, 1, zero, policy)).fits(
                    2 - index, is_first=index == 0, is_last=index == 1
                )[edges]
                for index, edges in enumerate([(0, start), (start, made.num_units)])
            )
            assert allowed or not fits
            seen.add((fits, allowed))
    assert {(True, True), (False, False)} <= seen


def test_tables_agree_with_each_other() -> None:
    prices = UnitPrices(MADE, pricer_of(MADE))
    table = prices.table(Shape(0, 1, 2, 1, 1, 0, "none"), in_pipeline=False)
    assert np.allclose(table.matrix[0, 1:], table.first[1:])
    assert np.allclose(table.matrix[:-1, -1], table.last[:-1])
    assert np.isinf(np.diag(table.matrix)).all()
