"""All 55 rules of Megatron-LM, asked at once.

What ``validate_args``, ``ModelParallelConfig``, ``TransformerConfig``, ``parallel_state``, the
schedules, the counter of micro-batches and the layout parser assert, in the order in which they
are numbered: world and batch 1-6, shapes 7-18, pipeline 19-28, experts 29-35, memory 36-39, data
parallelism 40-47, precision 48-49, schedule, data and checkpoints 50-55.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.planner.exporters.megatron.arguments import Arguments
from shardwright.planner.exporters.megatron.checks import (
    data_parallel,
    experts,
    memory,
    pipeline,
    precision,
    schedule,
    shapes,
)
from shardwright.planner.exporters.megatron.checks import (
    world as world_rules,
)
from shardwright.planner.exporters.megatron.checks.case import Case, Rule
from shardwright.planner.exporters.megatron.versions import MegatronVersion, version_of
from shardwright.specs.rules import Violation

RULES: dict[int, Rule] = {
    **world_rules.RULES,
    **shapes.RULES,
    **pipeline.RULES,
    **experts.RULES,
    **memory.RULES,
    **data_parallel.RULES,
    **precision.RULES,
    **schedule.RULES,
}
"""By number."""


def broken_argument_rules(
    arguments: Arguments,
    *,
    world: int,
    environment: Mapping[str, str] | None = None,
    capability: int | None = None,
    version: MegatronVersion | None = None,
    saved: Arguments | None = None,
) -> list[Violation]:
    """Every rule that a command line breaks, as ``megatron-17`` with its numbers.

    ``capability``: the device's major compute capability; ``saved``: the arguments of the
    checkpoint that ``--load`` names.
    """
    case = Case(arguments, world, environment or {}, capability, version or version_of(None), saved)
    return [
        Violation(f"megatron-{number}", problem, nearest)
        for number, rule in sorted(RULES.items())
        for problem, nearest in rule(case)
    ]
