"""Rules 1 to 6: the world and the batch."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.exporters.megatron.checks.case import Broken, Case, Rule
from shardwright.specs.world import divisors, nearest


def dense_grid(case: Case) -> Iterator[Broken]:
    part = case.tp * case.pp * case.cp * case.gtp
    if case.world % part:
        yield (
            f"the world of {case.world} ranks is not a multiple of tp x pp x cp"
            f"{' x weight shards' if case.gtp > 1 else ''} = {part}",
            f"tp x pp x cp in {nearest(divisors(case.world), part)}",
        )


def expert_grid(case: Case) -> Iterator[Broken]:
    part = case.etp * case.ep * case.pp * case.egtp
    if case.num_experts and case.world % part:
        yield (
            f"the world of {case.world} ranks is not a multiple of etp x ep x pp = {part}",
            f"etp x ep x pp in {nearest(divisors(case.world), part)}",
        )


def same_pipelines(case: Case) -> Iterator[Broken]:
    """With pp before dp the two grids have the same pipelines only if edp is dp.

    Both grids are made without experts, too: etp is tp then, so that cp must be 1.
    """
    is_crossed = case.has("--use-tp-pp-dp-mapping") and case.pp > 1
    if is_crossed and case.edp != case.dp:
        yield (
            f"--use-tp-pp-dp-mapping with pp = {case.pp} needs as many replicas of experts"
            f" ({case.edp}) as of the rest ({case.dp})",
            "rank_order = tp-cp-dp-pp",
        )


def batch(case: Case) -> Iterator[Broken]:
    part = case.micro_batch * case.dp * case.gtp
    shrinks = case.has("--decrease-batch-size-if-needed")
    schedule = case.arguments.text("--step-batch-size-schedule")
    if schedule is not None:
        yield from _batch_schedule(case, schedule, part)
        return
    if (case.global_batch % part and not shrinks) or case.global_batch < part:
        yield (
            f"--global-batch-size {case.global_batch} is not a multiple of micro_batch x dp ="
            f" {part}",
            f"global_batch = {max(part, case.global_batch // part * part)}",
        )


def _batch_schedule(case: Case, schedule: str, part: int) -> Iterator[Broken]:
    """``0:768 250B:1536``: tokens from which on a batch holds."""
    both = case.arguments.present(("--global-batch-size", "--decrease-batch-size-if-needed"))
    if both:
        yield f"--step-batch-size-schedule excludes {' and '.join(both)}", None
    steps = [step.partition(":") for step in schedule.split()]
    starts = [_tokens(start) for start, _, _ in steps]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)):
        yield "--step-batch-size-schedule must start at 0 and ascend", None
    for _, _, size in steps:
        if not size.isdigit() or int(size) == 0 or int(size) % part:
            yield f"batch {size or '?'} of the schedule is no positive multiple of {part}", None


def _tokens(text: str) -> float:
    units = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    return float(number) * unit if number.replace(".", "", 1).isdigit() else -1.0


def hybrid_context(case: Case) -> Iterator[Broken]:
    if case.has("--hybrid-context-parallel") and case.dp * case.cp % 2:
        yield f"--hybrid-context-parallel needs an even dp x cp, not {case.dp * case.cp}", None


def optimizer_instances(case: Case) -> Iterator[Broken]:
    instances = case.arguments.degree("--num-distributed-optimizer-instances")
    ranks = case.dp * case.cp
    if ranks % instances:
        yield (
            f"--num-distributed-optimizer-instances {instances} does not divide dp x cp = {ranks}",
            f"zero_shard_degree in {nearest(divisors(ranks), max(1, ranks // instances))}",
        )
    if instances > 1 and not case.has("--use-distributed-optimizer"):
        yield f"{instances} optimizer instances need --use-distributed-optimizer", "zero = 1"
    if instances > 1 and case.gtp > 1:
        yield "several optimizer instances exclude generalized tensor parallelism", None


RULES: dict[int, Rule] = {
    1: dense_grid, 2: expert_grid, 3: same_pipelines, 4: batch, 5: hybrid_context,
    6: optimizer_instances,
}  # fmt: skip
