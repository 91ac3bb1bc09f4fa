"""What a step goes to, in shares, and where two steps differ."""

from __future__ import annotations

from shardwright.planner.layouts import layout_in_words
from shardwright.specs import Breakdown, Candidate, Prediction
from shardwright.specs.units import format_seconds

LIMITS: dict[str, tuple[str, ...]] = {
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
"""Fields of `Breakdown` by what they have in common."""


def what_limits(prediction: Prediction) -> str:
    """The two largest shares of the step, or memory where it does not fit: ``compute 71 %``."""
    if prediction.memory_verdict == "does_not_fit":
        return "memory"
    return largest_shares(prediction.breakdown)


def largest_shares(breakdown: Breakdown) -> str:
    """``compute 71%, bubble 12%``: the two largest."""
    shares = [(what, share) for what, _, share in time_shares(breakdown)]
    return ", ".join(f"{what} {share:.0%}" for what, share in shares[:2] if share >= 0.005)


def time_shares(breakdown: Breakdown) -> list[tuple[str, float, float]]:
    """(what, seconds, fraction of the step) for all that takes time, largest first."""
    total_s = breakdown.total_s
    seconds = {
        what: sum(getattr(breakdown, name) for name in names) for what, names in LIMITS.items()
    }
    return sorted(
        ((what, taken, taken / total_s) for what, taken in seconds.items() if taken > 0),
        key=lambda share: -share[1],
    )


def difference_in_words(other: Candidate, chosen: Candidate) -> str:
    """``4.1 % slower: bubble +1.2 s, compute -0.4 s``: the three terms that differ most."""
    other_s, chosen_s = other.prediction.step_time_s, chosen.prediction.step_time_s
    ratio = other_s / chosen_s - 1
    head = "equally fast" if abs(ratio) < 5e-5 else (
        f"{abs(ratio):.2%} {'slower' if ratio > 0 else 'faster'}")  # fmt: skip
    shown = [
        f"{what} {'+' if more_s > 0 else '-'}{format_seconds(abs(more_s))}"
        for what, more_s in terms_that_differ(other, chosen)[:3]
    ]
    return f"{head}: {', '.join(shown)}" if shown else head


def terms_that_differ(other: Candidate, chosen: Candidate) -> list[tuple[str, float]]:
    """(what, seconds that the other takes more), the largest difference first; none below a
    thousandth of the step."""
    terms = []
    for what, names in LIMITS.items():
        more_s = sum(
            getattr(other.prediction.breakdown, name) - getattr(chosen.prediction.breakdown, name)
            for name in names
        )
        if abs(more_s) >= 1e-3 * chosen.prediction.step_time_s:
            terms.append((what, more_s))
    return sorted(terms, key=lambda term: -abs(term[1]))


def runner_up_in_words(other: Candidate, chosen: Candidate) -> str:
    """A layout and by how much it loses."""
    return f"{layout_in_words(other.layout)}: {difference_in_words(other, chosen)}"
