"""A machine of two nodes whose true ratios are hidden, and layouts timed on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.cost_models.step import StepModel
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.planner.problem import Problem
from shardwright.planner.trials.terms import Timed, predicted_terms
from shardwright.specs import Layout
from tests.cost_models.profiles import PARAMETERS, cluster, profile
from tests.runtime.plans import small_model, training_of

LAYOUTS: tuple[dict[str, Any], ...] = (
    {"tp": 2, "dp": 2, "micro_batch": 2},
    {"tp": 4, "micro_batch": 4},
    {"pp": 2, "tp": 2, "micro_batch": 2},
    {"pp": 4, "micro_batch": 1},
    {"dp": 4, "micro_batch": 2, "zero": 3},
    {"dp": 2, "pp": 2, "micro_batch": 1},
)


def problem(**further: float) -> Problem:
    """The small model on two nodes of two, priced by formulas."""
    priced = profile(cluster(num_nodes=2, ranks_per_node=2), parameters=PARAMETERS | further)
    return Problem(small_model(), training_of(precision="bf16"), priced)


def timed(hidden: Mapping[str, float], *, other_s: float = 0.0) -> list[Timed]:
    """What a machine with these parameters would measure, term by term."""
    of = problem(**hidden)
    model = StepModel(of.model, of.training, of.profile, of.software)
    found = []
    for choices in LAYOUTS:
        layout = Layout.of(of.model, of.training, **choices)
        rows = []
        for breakdown in model.rank_breakdowns(layout):
            terms = predicted_terms(breakdown)
            rows += [terms | {"other": other_s}] * layout.world_size.ranks_per_stage
        found.append(Timed(layout, model.predict(layout).step_time_s + other_s, tuple(rows)))
    return found


def named(source: HardwareProfile) -> dict[str, float]:
    return {parameter.name: parameter.value for parameter in source.parameters}
