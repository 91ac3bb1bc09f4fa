"""Layouts and predictions as tables and lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shardwright.specs import (
    Breakdown,
    Candidate,
    Certificate,
    Layout,
    MemoryParts,
    Plan,
    Prediction,
)
from shardwright.specs.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (
    "rank", "tp", "cp", "pp", "vpp", "dp", "zero", "mb", "recompute", "step (80 % band)", "MFU",
    "peak / usable", "what limits it",
)  # fmt: skip

LIMITS = {
    "compute": ("compute_forward", "compute_backward"),
    "recompute": ("recompute",),
    "tp traffic": ("tp_comm",),
    "cp traffic": ("cp_comm",),
    "ep traffic": ("ep_comm",),
    "pp traffic": ("pp_comm",),
    "bubble": ("bubble",),
    "dp traffic": ("dp_comm_exposed",),
    "optimizer": ("optimizer",),
    "data": ("data",),
    "other": ("other",),
}


def candidates_table(candidates: Sequence[Candidate], *, chosen: int | None = 0) -> Table:
    """One row per layout, best first; the chosen one is marked."""
    from rich import box
    from rich.table import Table

    table = Table(*COLUMNS, box=box.SIMPLE, pad_edge=False)
    for index, candidate in enumerate(candidates):
        marked = index == chosen
        rank = f"{index + 1} *" if marked else f"{index + 1}"
        table.add_row(rank, *candidate_cells(candidate), style="bold" if marked else None)
    return table


def candidate_cells(candidate: Candidate) -> list[str]:
    """The columns after ``rank`` of one layout."""
    layout, prediction = candidate.layout, candidate.prediction
    low, high = prediction.step_time_band_s
    peak = max(prediction.peak_memory_bytes)
    return [
        f"{layout.tp} sp" if layout.sequence_parallel else f"{layout.tp}",
        *(f"{degree}" for degree in (layout.cp, layout.pp, layout.vpp, layout.dp, layout.zero)),
        f"{layout.micro_batch}",
        recompute_in_words(layout),
        f"{format_seconds(prediction.step_time_s)} ({format_seconds(low)} - {format_seconds(high)})",
        "" if prediction.mfu is None else f"{prediction.mfu:.1%}",
        f"{format_bytes(peak)} / {format_bytes(prediction.memory_capacity_bytes)}",
        limit_in_words(prediction),
    ]


def recompute_in_words(layout: Layout) -> str:
    """``none``, ``full``, or ``full on 2 of 4`` where stages differ."""
    policies = [entry.policy for entry in layout.recompute]
    if len(set(policies)) == 1:
        return policies[0]
    used = next(policy for policy in policies if policy != "none")
    return f"{used} on {policies.count(used)} of {len(policies)}"


def limit_in_words(prediction: Prediction) -> str:
    """The two largest shares of the step, or memory where it does not fit."""
    if prediction.memory_verdict == "does_not_fit":
        return "memory"
    return ", ".join(f"{name} {share:.0%}" for name, share in shares(prediction.breakdown)[:2])


def shares(breakdown: Breakdown) -> list[tuple[str, float]]:
    """What the step goes to, as fractions of it, largest first; nothing below half a percent."""
    total_s = breakdown.total_s or 1.0
    found = {
        name: sum(getattr(breakdown, field) for field in fields) / total_s
        for name, fields in LIMITS.items()
    }
    return sorted(
        ((name, share) for name, share in found.items() if share >= 0.005),
        key=lambda item: -item[1],
    )


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


def layout_in_words(layout: Layout) -> str:
    """The choices of a layout in the form that ``estimate --layout`` reads."""
    parts = [f"{name}={getattr(layout, name)}" for name in ("tp", "cp", "pp", "vpp", "dp")]
    parts += [f"zero={layout.zero}", f"micro_batch={layout.micro_batch}"]
    return ",".join(parts)


def certificate_in_words(certificate: Certificate) -> str:
    """The books of the search in one line."""
    counts = [
        (certificate.excluded_by_rules, "against the rules"),
        (certificate.excluded_by_memory, "too big"),
        (certificate.excluded_by_bound, "bounded out"),
        (certificate.excluded_by_dominance, "dominated"),
        (certificate.simulated, "simulated"),
    ]
    parts = ", ".join(f"{number:,} {word}" for number, word in counts if number)
    verdict = (
        "none better under this model"
        if certificate.optimal
        else f"a better one may exist, by {certificate.gap:.2%} at most"
    )
    return (
        f"{certificate.considered:,} layouts in {format_seconds(certificate.search_s)}: {parts};"
        f" {verdict}"
    )


def plan_lines(plan: Plan) -> Iterator[str]:
    """What stands above the table: the model, the cluster and what was assumed."""
    training = plan.training
    yield f"model     {plan.model.name}: {plan.model.num_parameters:,} parameters"
    yield f"cluster   {plan.cluster.in_words()}"
    yield (
        f"training  {training.global_batch:,} sequences x {training.seq_len:,} tokens ="
        f" {training.tokens_per_step:,} tokens a step, {training.precision},"
        f" {training.optimizer.name}"
    )
    if plan.assumed:
        yield assumed_in_words(plan.assumed)


def assumed_in_words(assumed: dict[str, str]) -> str:
    """``assumed: seq_len 8192, precision bf16``."""
    return "assumed:  " + ", ".join(f"{name} {value}" for name, value in assumed.items())


def ties_in_words(plan: Plan) -> Iterator[str]:
    """Which others the model cannot tell apart from the chosen layout."""
    if plan.ties:
        names = ";  ".join(layout_in_words(candidate.layout) for candidate in plan.ties)
        yield f"ties      within the band of the best, only a trial can tell: {names}"


def budget_in_words(plan: Plan) -> Iterator[str]:
    """How long the token budget takes at the predicted pace, without failures, where stated."""
    if plan.training.token_budget is not None:
        seconds = plan.training.token_budget / plan.prediction.tokens_per_s
        yield (
            f"budget    {plan.training.token_budget:,} tokens take {seconds / 86400:,.1f} days"
            " without failures"
        )


def breakdown_table(prediction: Prediction) -> Table:
    """Where the step time goes."""
    from rich import box
    from rich.table import Table

    table = Table("where the step goes", "time", "share", box=box.SIMPLE, pad_edge=False)
    total_s = prediction.breakdown.total_s or 1.0
    for name in type(prediction.breakdown).model_fields:
        seconds = getattr(prediction.breakdown, name)
        if seconds > 0:
            table.add_row(name, format_seconds(seconds), f"{seconds / total_s:.1%}")
    return table


def memory_table(prediction: Prediction) -> Table:
    """What the memory of each pipeline rank holds at its peak."""
    from rich import box
    from rich.table import Table

    parts = list(MemoryParts.model_fields)
    table = Table("pipeline rank", *parts, "peak", box=box.SIMPLE, pad_edge=False)
    for rank, memory in enumerate(prediction.memory):
        cells = [format_bytes(getattr(memory, part)) for part in parts]
        table.add_row(f"{rank}", *cells, format_bytes(prediction.peak_memory_bytes[rank]))
    return table
