"""Units add up to what whole stages cost."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.planner.stacks.choices import Cut, Grid
from shardwright.planner.stacks.units import UnitPricer
from shardwright.specs import Layout
from tests.planner.stacks.small import pricer_of, problem

GRID, CUT = Grid(2, 1, 2, 2, 1, 2), Cut(True, "ring", 2, 1)


def test_the_sum_of_units_is_the_model() -> None:
    made = problem(gpus=8)
    pricer = pricer_of(made)
    units = UnitPricer(made, pricer).times(GRID, CUT, "full", 1, {})
    whole = Layout.of(made.model, made.training, tp=2, dp=2, ep=2, sequence_parallel=True, zero=1)
    (stage,) = pricer.stage_times(whole)
    assert units.total["forward_s"] == pytest.approx(stage.forward.total_s)
    assert units.total["input_s"] == pytest.approx(stage.backward_input.total_s)
    assert units.total["kernels"] == pytest.approx(
        stage.backward_input.kernels + stage.backward_weight.kernels
    )
    assert units.total["again_s"] > 0
    assert len(units.total_s) == made.num_units


def test_stages_are_differences_of_sums() -> None:
    made = problem(gpus=8)
    units = UnitPricer(made, pricer_of(made)).times(GRID, CUT, "none", 0, {})
    parts = units.stages(np.array([0, 2, 6]))
    assert parts["forward_s"].sum() == pytest.approx(units.total["forward_s"])


def test_bytes_are_those_of_one_stage() -> None:
    made = problem(gpus=8)
    pricer = pricer_of(made)
    held = UnitPricer(made, pricer).bytes(GRID, CUT, "none", 1, {})
    whole = Layout.of(made.model, made.training, tp=2, dp=2, ep=2, sequence_parallel=True, zero=1)
    (stage,) = pricer.stage_bytes(whole)
    assert held.state[-1] == pytest.approx(stage.weights + stage.gradients + stage.optimizer_state)
    assert held.saved[-1] == pytest.approx(stage.saved)
    assert held.moment > 0
