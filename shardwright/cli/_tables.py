"""Layouts and predictions as tables and lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shardwright.cli._output import table as table_of
from shardwright.planner.explain import time_shares, what_limits
from shardwright.specs import (
    Candidate,
    Certificate,
    Layout,
    MemoryParts,
    Plan,
    Prediction,
    ScheduleName,
)
from shardwright.specs.units import format_bytes, format_seconds, format_seconds_band

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (
    "rank", "tp", "cp", "pp", "vpp", "dp", "zero", "mb", "recompute", "step (80 % band)", "MFU",
    "peak / usable", "what limits it",
)  # fmt: skip


def candidates_table(candidates: Sequence[Candidate], *, chosen: int | None = 0) -> Table:
    """One row per layout, best first; the chosen one is marked. A column of experts' ranks where
    there are any."""
    experts = any(one.layout.ep * one.layout.etp > 1 for one in candidates)
    split = COLUMNS.index("zero")
    table = table_of(*COLUMNS[:split], *(["ep"] if experts else []), *COLUMNS[split:])
    for index, candidate in enumerate(candidates):
        marked = index == chosen
        rank = f"{index + 1} *" if marked else f"{index + 1}"
        cells = candidate_cells(candidate, experts=experts)
        table.add_row(rank, *cells, style="bold" if marked else None)
    return table


_CP_KINDS = {"ring": "ring", "all_to_all": "a2a", "all_gather": "gather"}


def candidate_cells(candidate: Candidate, *, experts: bool = False) -> list[str]:
    """The columns after ``rank`` of one layout; ``experts``: with theirs."""
    layout, prediction = candidate.layout, candidate.prediction
    peak = max(prediction.peak_memory_bytes)
    return [
        f"{layout.tp} sp" if layout.sequence_parallel else f"{layout.tp}",
        f"{layout.cp} {_CP_KINDS[layout.cp_kind]}" if layout.cp > 1 else "1",
        pipeline_in_words(layout),
        *(f"{degree}" for degree in (layout.vpp, layout.dp)),
        *([f"{layout.ep}" if layout.etp == 1 else f"{layout.ep} etp {layout.etp}"] * experts),
        f"{layout.zero}",
        f"{layout.micro_batch}",
        recompute_in_words(layout),
        step_in_words(prediction),
        "" if prediction.mfu is None else f"{prediction.mfu:.1%}",
        f"{format_bytes(peak)} / {format_bytes(prediction.memory_capacity_bytes)}",
        what_limits(prediction),
    ]


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
    bounds = ("fixed:", "without ")
    asked = any(part.startswith(bounds) for part in certificate.space.split("; "))
    verdict = (
        f"none better under this model{' with what was fixed or forbidden' if asked else ''}"
        if certificate.optimal
        else f"a better one may exist, by {certificate.gap:.2%} at most"
    )
    return (
        f"{large(certificate.considered)} layouts in {format_seconds(certificate.search_s)}:"
        f" {parts}; {verdict}"
    )


def large(number: int) -> str:
    """``1,234,567``, and ``4.64e+24`` for what nobody would read digit by digit."""
    return f"{number:,}" if number < 10**9 else f"{number:.3g}"


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


def budget_in_words(plan: Plan) -> Iterator[str]:
    """How long the token budget takes at the predicted pace, without failures, where stated."""
    if plan.training.token_budget is not None:
        seconds = plan.training.token_budget / plan.prediction.tokens_per_s
        yield (
            f"budget    {plan.training.token_budget:,} tokens take {seconds / 86400:,.1f} days"
            " without failures"
        )


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
