"""Units add up to what whole stages cost."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.cost_models.stacks.step import StackModel
from shardwright.planner.layout_text import recompute_from
from shardwright.planner.problem import Problem
from shardwright.planner.stacks.choices import Cut, Grid, State
from shardwright.planner.stacks.units import ALONE, UnitPricer, rank_trained
from shardwright.specs import Layout
from tests.planner.stacks.small import pricer_of, problem

GRID, CUT = Grid(2, 1, 1, 2, 1, 2), Cut(True, "ring", 2, 1)
ZERO = State(1, 2, 2, True, "none", "tp-cp-dp-pp")


def made_units() -> tuple[Problem, StackModel, UnitPricer]:
    made = problem(gpus=4)
    pricer = pricer_of(made)
    return made, pricer, UnitPricer(made, pricer, {})


def whole(made: Problem, **options: Any) -> Layout:
    return Layout.of(
        made.model, made.training, tp=2, dp=2, ep=2, micro_batch=1, sequence_parallel=True,
        **options,
    )  # fmt: skip


def test_kinds_of_layers_are_told_apart() -> None:
    _, _, units = made_units()
    assert units.kind_of_unit == (0, 1, 2, 2, 2, 3)
    assert units.num_layers_of_kind == (1, 3)
    assert not units.has_encoders
    assert not units.has_predictions


def test_the_sum_of_units_is_the_model() -> None:
    made, pricer, units = made_units()
    times = units.times(GRID, CUT)
    (stage,) = pricer.stage_times(whole(made))
    assert times.forward_s[-1] == pytest.approx(stage.forward.total_s)
    assert times.input_s[-1] == pytest.approx(stage.backward_input.total_s)
    assert times.weight_s[-1] == pytest.approx(stage.backward_weight.total_s)
    assert times.kernels[-1] == pytest.approx(
        stage.backward_input.kernels + stage.backward_weight.kernels
    )
    assert len(times.forward_s) == made.num_units + 1


@pytest.mark.parametrize("policy", ["none", "full", "selective:norm+mlp_act+moe_act+mla_up_proj"])
def test_what_is_computed_again_and_kept_is_that_of_the_stage(policy: str) -> None:
    made, pricer, units = made_units()
    again = units.again(GRID, CUT, policy, 1)
    layout = whole(made, recompute=recompute_from(policy, 1))
    (stage,), (sizes,) = pricer.stage_times(layout), pricer.stage_bytes(layout)
    assert again.seconds[-1] == pytest.approx(stage.again.total_s)
    assert again.kernels[-1] == pytest.approx(stage.again.kernels)
    assert again.saved_bytes[-1] == pytest.approx(sizes.saved)
    assert max(again.working_bytes) == pytest.approx(sizes.working)


def test_more_chunks_of_the_loss_make_its_logits_again() -> None:
    _, _, units = made_units()
    one, four = units.again(GRID, CUT, "none", 1), units.again(GRID, CUT, "none", 4)
    assert four.seconds[-1] > one.seconds[-1]
    assert four.working_bytes[-1] < one.working_bytes[-1]


def test_bytes_held_are_those_of_one_stage() -> None:
    made, pricer, units = made_units()
    state = units.state(GRID, CUT, ZERO)
    layout = whole(made, zero=1)
    (sizes,), (trained,) = pricer.stage_bytes(layout), pricer.trained(layout)
    assert state.held_bytes[-1] == pytest.approx(
        sizes.weights + sizes.gradients + sizes.optimizer_state
    )
    assert (state.dense[-1], state.experts[-1]) == (trained.dense, trained.experts)
    assert rank_trained(state, 2).dense == trained.dense / 2


def test_what_is_offloaded_is_not_held() -> None:
    _, _, units = made_units()
    away = units.state(GRID, CUT, ZERO._replace(offload="optimizer"))
    assert away.held_bytes[-1] < units.state(GRID, CUT, ZERO).held_bytes[-1]
    assert away.step_copy_bytes[-1] == 0.0


def test_nothing_is_beside_the_passes_without_shards() -> None:
    _, _, units = made_units()
    assert units.shards(GRID, CUT, ALONE, "none", 1)[0][-1] == 0.0
    gathered = units.shards(GRID, CUT, ZERO._replace(zero=3), "none", 1)
    assert gathered[0][-1] > 0.0
