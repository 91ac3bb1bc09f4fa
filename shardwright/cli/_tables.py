"""Layouts and predictions as tables and lines for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from shardwright.cli._output import table as table_of
from shardwright.planner.explain.sensitivity import FACTORS
from shardwright.planner.explain.shares import time_shares, what_limits
from shardwright.planner.goals import HEADROOM_WORDS
from shardwright.specs import (
    Candidate,
    Certificate,
    Layout,
    MemoryParts,
    Plan,
    Prediction,
    ScheduleName,
)
from shardwright.specs.meshes import replica_sets
from shardwright.specs.units import format_bytes, format_seconds, format_seconds_band

if TYPE_CHECKING:
    from rich.table import Table

    from shardwright.cost_models.money import Terms
    from shardwright.planner.explain import Sensitivity, StageShare
    from shardwright.planner.importers.yours import Yours

COLUMNS = (
    "rank", "tp", "cp", "pp", "vpp", "dp", "zero", "mb", "recompute", "step (80 % band)", "MFU",
    "peak / usable", "what limits it",
)  # fmt: skip


def candidates_table(
    candidates: Sequence[Candidate], *, chosen: int | None = 0, yours: Yours | None = None
) -> Table:
    """One row per layout, best first; the chosen one is marked, and the last row is the user's own
    where there is one. Columns of experts' ranks, and of choices that few layouts make, where there
    are any."""
    own = [] if yours is None or yours.candidate is None else [yours.candidate]
    experts = any(one.layout.ep * one.layout.etp > 1 for one in (*candidates, *own))
    others = any(others_in_words(one.layout) for one in (*candidates, *own))
    split, last = COLUMNS.index("zero"), COLUMNS.index("recompute") + 1
    table = table_of(
        *COLUMNS[:split], *["ep"] * experts, *COLUMNS[split:last], *["other choices"] * others,
        *COLUMNS[last:],
    )  # fmt: skip
    for index, candidate in enumerate(candidates):
        marked = index == chosen
        rank = f"{index + 1} *" if marked else f"{index + 1}"
        cells = candidate_cells(candidate, experts=experts, others=others)
        table.add_row(rank, *cells, style="bold" if marked else None)
    for candidate in own:
        table.add_row("yours", *candidate_cells(candidate, experts=experts, others=others))
    if yours is not None and not own:
        table.add_row("yours", *["-"] * (len(table.columns) - 2), yours.verdict.replace("_", " "))
    return table


_YOURS = {
    "unknown": "not known: ", "breaks_rules": "not possible here: ", "does_not_fit": "does not fit:"
    " ", "priced": "fits, but ",
}  # fmt: skip


def yours_lines(yours: Yours) -> Iterator[str]:
    """Why the user's own layout is slower or faster than the plan, or cannot be run."""
    first, *others = yours.reasons
    yield f"yours     {_YOURS.get(yours.verdict, '')}{first}"
    yield from (f"          {text}" for text in others)


_CP_KINDS = {"ring": "ring", "all_to_all": "a2a", "all_gather": "gather"}


def candidate_cells(
    candidate: Candidate, *, experts: bool = False, others: bool = False
) -> list[str]:
    """The columns after ``rank`` of one layout; ``experts``: with theirs; ``others``: with choices
    that few layouts make."""
    layout, prediction = candidate.layout, candidate.prediction
    fullest = prediction.fullest_rank
    peak, capacity = prediction.peak_memory_bytes[fullest], prediction.capacity_of(fullest)
    return [
        tensor_in_words(layout),
        f"{layout.cp} {_CP_KINDS[layout.cp_kind]}" if layout.cp > 1 else "1",
        _by_set(layout, pipeline_in_words),
        _by_set(layout, lambda part: f"{part.vpp}"),
        _by_set(layout, lambda part: f"{part.dp}"),
        *([f"{layout.ep}" if layout.etp == 1 else f"{layout.ep} etp {layout.etp}"] * experts),
        _by_set(layout, zero_in_words),
        _by_set(layout, lambda part: f"{part.micro_batch}"),
        recompute_in_words(layout),
        *([others_in_words(layout)] * others),
        step_in_words(prediction),
        "" if prediction.mfu is None else f"{prediction.mfu:.1%}",
        f"{format_bytes(peak)} / {format_bytes(capacity)}",
        what_limits(prediction),
    ]


def _by_set(layout: Layout, words: Callable[[Layout], str]) -> str:
    """``4+2``: of each set of replicas, once where all are alike."""
    found = [words(part) for part in replica_sets(layout)]
    return found[0] if len(set(found)) == 1 else "+".join(found)


def tensor_in_words(layout: Layout) -> str:
    """``8 sp``; ``4/2`` where the pipeline ranks of a set of replicas differ."""

    def degrees(part: Layout) -> str:
        listed = [mesh.tp for mesh in part.stage_meshes or ()] or [part.tp]
        return "/".join(f"{tp}" for tp in dict.fromkeys(listed))

    words = _by_set(layout, degrees)
    return f"{words} sp" if layout.sequence_parallel else words


def zero_in_words(layout: Layout) -> str:
    """``3``, or ``3 /8`` where 8 ranks share a copy, fewer than there are."""
    is_whole = layout.zero == 0 or layout.zero_shard_degree == layout.dp * layout.cp
    return f"{layout.zero}" if is_whole else f"{layout.zero} /{layout.zero_shard_degree}"


def others_in_words(layout: Layout) -> str:
    """``offload optimizer, loss in 4``: what differs from most layouts and has no column."""
    words = []
    if layout.offload:
        words.append("offload " + "+".join(layout.offload))
    if layout.loss_chunks > 1:
        words.append(f"loss in {layout.loss_chunks}")
    if not layout.reshard_after_forward:
        words.append("weights kept")
    if layout.rank_order != Layout.model_fields["rank_order"].default:
        words.append(layout.rank_order)
    return ", ".join(words)


def step_in_words(prediction: Prediction) -> str:
    """``3.42 s (3.08 - 3.76)``."""
    return format_seconds_band(prediction.step_time_s, prediction.step_time_band_s)


def pipeline_in_words(layout: Layout) -> str:
    """``8``, or ``8 gpipe`` where the schedule is not the usual one: 1f1b, interleaved with vpp."""
    usual = (None, ScheduleName.ONE_F_ONE_B if layout.vpp == 1 else ScheduleName.INTERLEAVED)
    return f"{layout.pp}" if layout.schedule in usual else f"{layout.pp} {layout.schedule}"


def recompute_in_words(layout: Layout) -> str:
    """``none``, ``full``, ``norm+mlp``, or ``full on 2 of 4`` where stages differ."""
    policies = [
        "+".join(entry.modules) if entry.modules else entry.policy for entry in layout.recompute
    ]
    if len(set(policies)) == 1:
        return policies[0]
    used = next(policy for policy in policies if policy != "none")
    return f"{used} on {policies.count(used)} of {len(policies)}"


def ranked(plan: Plan) -> list[Candidate]:
    """The chosen layout, then its ties and alternatives by step time, each layout once."""
    first = Candidate(layout=plan.layout, prediction=plan.prediction)
    rest = {candidate.layout: candidate for candidate in (*plan.alternatives, *plan.ties)}
    rest.pop(plan.layout, None)
    return [first, *sorted(rest.values(), key=lambda c: c.prediction.step_time_s)]


def stages_in_words(layout: Layout) -> str:
    """``layers 0-9 | 10-21 | 22-31`` where there are stages."""
    return " | ".join(
        f"{stage.layers[0]}-{stage.layers[1] - 1}" if stage.num_layers else "none"
        for stage in layout.stages
    )


def certificate_in_words(certificate: Certificate) -> str:
    """The books of the search in one line."""
    counts = [
        (certificate.excluded_by_rules, "against the rules"),
        (certificate.excluded_by_memory, "too big"),
        (
            certificate.excluded_by_bound,
            "bounded out" if certificate.optimal else "bounded out or not reached",
        ),
        (certificate.excluded_by_dominance, "dominated"),
        (certificate.simulated, "simulated"),
    ]
    parts = ", ".join(f"{large(number)} {word}" for number, word in counts if number)
    bounds = ("fixed:", "without ", "bound:")
    asked = any(part.startswith(bounds) for part in certificate.space.split("; "))
    better = "better"
    if HEADROOM_WORDS in certificate.space:
        better = "leaner within " + certificate.space.partition(HEADROOM_WORDS)[2].partition(",")[0]
    verdict = (
        f"none {better} under this model{' with what was ruled out' if asked else ''}"
        if certificate.optimal
        else f"a better one may exist, by {certificate.gap:.2%} at most"
    )
    return (
        f"{large(certificate.considered)} layouts in {format_seconds(certificate.search_s)}:"
        f" {parts}; {verdict}"
    )


def large(number: int) -> str:
    """``1,234,567``, and ``4.64e+24`` for what nobody would read digit by digit."""
    return f"{number:,}" if number < 10**9 else f"{Decimal(number):.3g}"


def plan_lines(plan: Plan) -> Iterator[str]:
    """What stands above the table: the model, the cluster and what was assumed."""
    training = plan.training
    yield f"model     {plan.model.name}: {plan.model.num_parameters:,} parameters"
    known = plan.assumed.get("hardware")
    yield f"cluster   {plan.cluster.in_words()}" + (f"; {known}" if known else "")
    yield (
        f"training  {training.global_batch:,} sequences x {training.seq_len:,} tokens ="
        f" {training.tokens_per_step:,} tokens a step, {training.precision},"
        f" {training.optimizer.name}"
        + (f", {training.trainable}" if training.trainable != "full" else "")
    )
    if plan.software.framework != "shardwright":
        yield f"software  {software_in_words(plan.software.framework)}"
    unsaid = {name: value for name, value in plan.assumed.items() if name != "hardware"}
    if unsaid:
        yield assumed_in_words(unsaid)


def software_in_words(name: str) -> str:
    """``megatron-bridge: NVIDIA Megatron-Bridge ...``, and how much is known of it."""
    from shardwright.hardware_profiles.stacks import fitted, list_stacks, stack_facts

    runs = fitted().num_runs.get(name)
    known = f"fitted from {runs} runs" if runs else "no runs of its own: the centre of all stacks"
    if name not in list_stacks():
        return f"{name}, as calibrated"
    return f"{name}: {stack_facts(name).description.rstrip('.')} ({known})"


def assumed_in_words(assumed: dict[str, str]) -> str:
    """``assumed: seq_len 8192, precision bf16``."""
    return "assumed:  " + ", ".join(f"{name} {value}" for name, value in assumed.items())


def ties_in_words(plan: Plan) -> Iterator[str]:
    """Which others the model cannot tell apart from the chosen layout."""
    if plan.ties:
        tied = {candidate.layout for candidate in plan.ties}
        rows = [f"{row}" for row, one in enumerate(ranked(plan), 1) if one.layout in tied]
        yield (
            f"ties      {'rows' if len(rows) > 1 else 'row'} {', '.join(rows)} of the table: too"
            " close to the best for this model, only a trial can tell"
        )


def budget_in_words(plan: Plan, terms: Terms | None = None) -> Iterator[str]:
    """What the run to the token budget takes: days with failures, GPU-hours, dollars."""
    from shardwright.cost_models.money import run_cost
    from shardwright.planner.goals import in_days, in_usd

    training = plan.training
    if training.token_budget is None:
        return
    run = run_cost(
        plan.cluster,
        step_time_s=plan.prediction.step_time_s,
        tokens_per_step=training.tokens_per_step,
        token_budget=training.token_budget,
        terms=terms,
    )
    cost = "no price known" if run.cost_usd is None else in_usd(run.cost_usd)
    yield (
        f"budget    {training.token_budget:,} tokens take {in_days(run.time_s)}, of which"
        f" {in_days(run.compute_s)} in steps and the rest in checkpoints and failures:"
        f" {run.gpu_hours:,.0f} GPU-hours, {cost}"
    )


_OUTCOMES = {
    "worse": "no better", "too_slow": "too slow", "too_costly": "too costly",
    "too_small": "too small", "impossible": "against the rules", "unproven": "not proven",
}  # fmt: skip


def counts_in_words(plan: Plan) -> Iterator[str]:
    """On which numbers of devices an objective was looked for, and what came of them."""
    counts = plan.certificate.counts
    if not counts:
        return
    parts = []
    for outcome, words in _OUTCOMES.items():
        devices = [one.devices for one in counts if one.outcome == outcome]
        if devices:
            parts.append(f"{_few(devices)} {words}")
    is_fewest = plan.asked.get("objective") == "gpus"
    others = f": {'; '.join(parts)}" if parts else ""
    yield (
        f"devices   {plan.cluster.num_devices:,}, the {'fewest' if is_fewest else 'cheapest'} of"
        f" {len(counts)} numbers that were tried{others}"
    )


def _few(numbers: Sequence[int]) -> str:
    """``1, 2, 3, ..., 64``."""
    shown = [*map(str, numbers[:3]), "...", str(numbers[-1])] if len(numbers) > 5 else numbers
    return ", ".join(map(str, shown))


def groups_in_words(plan: Plan) -> Iterator[str]:
    """On several groups of nodes: what runs where, and what simpler uses of them would take."""
    from shardwright.planner.heterogeneous.words import baselines_in_words, devices_in_words

    yield from (f"devices   {line}" for line in devices_in_words(plan))
    yield from (f"instead   {line}" for line in baselines_in_words(plan))


def breakdown_table(prediction: Prediction) -> Table:
    """Where the step time goes, largest part first."""
    table = table_of("where the step goes", "time", "share")
    for what, seconds, share in time_shares(prediction.breakdown):
        table.add_row(what, format_seconds(seconds), f"{share:.1%}")
    return table


def memory_table(prediction: Prediction) -> Table:
    """What the memory of each pipeline rank holds at its peak."""
    parts = list(MemoryParts.model_fields)
    table = table_of("pipeline rank", *(part.replace("_", " ") for part in parts), "peak")
    for rank, memory in enumerate(prediction.memory):
        cells = [format_bytes(getattr(memory, part)) for part in parts]
        table.add_row(f"{rank}", *cells, format_bytes(prediction.peak_memory_bytes[rank]))
    return table


def rank_times_tables(stages: Sequence[StageShare]) -> Iterator[Table]:
    """How each pipeline rank spends the step; nothing where that is not known."""
    known = [stage for stage in stages if stage.breakdown is not None]
    if not known:
        return
    table = table_of("pipeline rank", "layers", "holds", "busy", "what its time goes to")
    for stage in known:
        assert stage.breakdown is not None
        assert stage.busy_fraction is not None
        goes = ", ".join(
            f"{what} {format_seconds(seconds)}"
            for what, seconds, share in time_shares(stage.breakdown)
            if share >= 0.005
        )
        holds = " + ".join(name.replace("_", " ") for name in stage.holds)
        table.add_row(f"{stage.rank}", stage.layers, holds, f"{stage.busy_fraction:.1%}", goes)
    yield table


def sensitivity_tables(found: Sequence[Sensitivity]) -> Iterator[Table]:
    """What more of each thing gains in tokens per second, the most useful first."""
    if not found:
        return
    table = table_of("what would help", "10 % more", "twice as much", "how it was priced")
    for one in found:
        gains = {gain.factor: f"{gain.gain:+.1%}" for gain in one.gains}
        table.add_row(
            one.words, *(gains.get(factor, "-") for factor in FACTORS), one.how_in_words()
        )
    yield table
