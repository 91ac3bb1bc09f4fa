"""Whether any of many random layouts is faster than a plan that is certified as the best.

    python -m benchmarks.random_layouts [--layouts 1000]

For each problem of `planner_speed` whose search ends with a proof, random layouts that obey the
rules are priced as `estimate` prices them: any grid, cut, state and schedule, boundaries balanced,
even or drawn, one policy for all stages or one drawn for each.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass

from benchmarks.planner_speed import QUESTIONS, Question
from shardwright.cost_models.pricing import stack_model
from shardwright.cost_models.stacks.step import StackModel
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.engine import software_of
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.stacks.choices import Grid, Pipeline, StackChoices
from shardwright.planner.stacks.search import search_stacks
from shardwright.planner.stacks.space import StackSpace
from shardwright.planner.stacks.splits import balanced_split, even_split
from shardwright.specs import TrainingSpec
from shardwright.specs.sources import resolve_model

TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Drawn:
    """What random layouts said."""

    num_fitting: int
    least_s: float
    """Of those that fit."""
    num_faster: int
    """Than the plan."""


def problem_of(question: Question) -> Problem:
    """The problem that a question of the command line asks about."""
    options = dict(zip(question.options.split()[::2], question.options.split()[1::2], strict=True))
    profile = resolve_cluster(options["--cluster"], gpus=int(options["--gpus"]))
    training = TrainingSpec(
        global_batch=int(options["--global-batch"]), seq_len=int(options["--seq-len"]),
        precision=options.get("--precision", "bf16"),
    )  # fmt: skip
    assert isinstance(question.model, str)
    return Problem(resolve_model(question.model), training, profile, software_of(profile))


def draw_starts(
    space: StackSpace, grid: Grid, pipeline: Pipeline, draw: random.Random
) -> list[int]:
    """Where stages start: balanced, even or anywhere."""
    units, count = space.problem.num_units, grid.pp * pipeline.vpp
    how = draw.choice(["balanced", "even", "drawn"])
    if how == "even":
        return list(even_split(units, count))
    if how == "balanced":
        return list(balanced_split([1.0] * units, count))
    return sorted(draw.sample(range(1, units), count - 1))


def draw_choices(space: StackSpace, draw: random.Random) -> StackChoices:
    """Any layout that obeys the rules."""
    while True:
        grid = draw.choice(space.valid)
        cuts = space.valid_cuts(grid)
        cut = draw.choice(cuts)
        states, pipelines = space.valid_states(grid, cut), space.valid_pipelines(grid)
        if states and pipelines:
            break
    pipeline = draw.choice(pipelines)
    starts = draw_starts(space, grid, pipeline, draw)
    count = grid.pp * pipeline.vpp
    recompute = [draw.choice(space.recomputes)] * count
    if draw.random() < 0.3:
        recompute = [draw.choice(space.recomputes) for _ in range(count)]
    return StackChoices(
        grid, cut, draw.choice(states), pipeline, draw.choice(space.loss_chunks),
        tuple(starts), tuple(recompute),
    )  # fmt: skip


def draw_layouts(made: Problem, pricer: StackModel, best_s: float, count: int) -> Drawn:
    """Price so many random layouts."""
    space, draw = StackSpace(made, Constraints()), random.Random(1)
    fitting, least_s, faster = 0, float("inf"), 0
    for _ in range(count):
        layout = draw_choices(space, draw).layout(made, space.others)
        if pricer.verdict(pricer.memory(layout)) != "fits":
            continue
        step_s = pricer.step_time_s(layout)
        fitting += 1
        least_s = min(least_s, step_s)
        faster += step_s < best_s * (1 - TOLERANCE)
    return Drawn(fitting, least_s, faster)


def main() -> None:
    """Print a row for each problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layouts", type=int, default=1000)
    count = parser.parse_args().layouts
    sys.stdout.write(
        "| problem | certified step (s) | gap | layouts | that fit | fastest (s) | faster |\n"
        "|---|--:|--:|--:|--:|--:|--:|\n"
    )
    failed = 0
    for question in QUESTIONS:
        if isinstance(question.model, dict):
            continue
        made = problem_of(question)
        pricer = stack_model(made.model, made.training, made.profile, made.software)
        result = search_stacks(made, Constraints(top=1), pricer)
        best_s = result.ranking[0].prediction.step_time_s
        drawn = draw_layouts(made, pricer, best_s, count)
        failed += drawn.num_faster
        sys.stdout.write(
            f"| {question.name} | {best_s:.4f} | {result.certificate.gap:.1%} | {count:,}"
            f" | {drawn.num_fitting} | {drawn.least_s:.4f} | {drawn.num_faster} |\n"
        )
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
