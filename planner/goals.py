"""What is made best, and what must be met besides."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shardwright.cost_models.money import RunCost, Terms, run_cost, usd_per_s
from shardwright.planner.problem import Problem
from shardwright.specs import InputError

STEP_TIME, COST, GPUS, HEADROOM = "step-time", "cost", "gpus", "memory-headroom"
OBJECTIVES = (STEP_TIME, COST, GPUS, HEADROOM)
SLACK = 0.05
"""By how much a step may be slower than the best where free memory is what counts."""
HEADROOM_WORDS = "the most free memory within "
"""What a certificate says where free memory counted; then how much slower a step may be."""
SECONDS_PER_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Goal:
    """An objective with its limits.

    ``step-time``: the fastest step on the whole cluster. ``cost``: the cheapest run to the token
    budget on any number of devices that the cluster has. ``gpus``: the fewest devices that meet the
    deadline and the budget, or on which something fits. ``memory-headroom``: the most free memory
    among layouts whose step is at most ``slack`` slower than the best.
    """

    objective: str = STEP_TIME
    deadline_s: float | None = None
    """Time to the token budget, checkpoints and failures included."""
    budget_usd: float | None = None
    slack: float = SLACK
    terms: Terms = field(default_factory=Terms)
    """Prices and failures that are not the catalogue's."""

    def __post_init__(self) -> None:
        """Refuse what cannot be asked for; raises `InputError`."""
        if self.objective not in OBJECTIVES:
            raise InputError(
                f"the objective {self.objective!r} is not known",
                fix=f"choose one of {', '.join(OBJECTIVES)}",
            )
        for name, value in (("deadline", self.deadline_s), ("budget", self.budget_usd)):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"a {name} of {value:g} cannot be met", fix="give more than 0")
        if not 0 <= self.slack < 1:
            raise InputError(
                f"a slack of {self.slack:g} is not a share of the step",
                fix="give 0% to 99%, such as --slack 5%",
            )

    @property
    def is_limited(self) -> bool:
        """Whether there is a deadline or a budget."""
        return self.deadline_s is not None or self.budget_usd is not None

    @property
    def varies_devices(self) -> bool:
        """Whether fewer devices than the cluster has may be the answer."""
        return self.objective in (COST, GPUS)

    def asked(self) -> dict[str, str]:
        """What is not the usual, by the option that it is typed behind."""
        texts = {
            "objective": self.objective if self.objective != STEP_TIME else "",
            "deadline": "" if self.deadline_s is None else f"{self.deadline_s:.12g}s",
            "budget": "" if self.budget_usd is None else f"{self.budget_usd:.12g}",
            "slack": f"{self.slack:.4%}" if self.objective == HEADROOM else "",
        }
        return {name: text for name, text in texts.items() if text}

    def check(self, problem: Problem) -> None:
        """Refuse a goal that a problem says too little for; raises `InputError`."""
        needs_tokens = self.is_limited or self.objective == COST
        if needs_tokens and problem.training.token_budget is None:
            what = "a deadline or a budget" if self.is_limited else "the objective cost"
            raise InputError(
                f"{what} needs to know how many tokens are trained on", fix="add --tokens, as 15T"
            )
        if self.objective == COST or self.budget_usd is not None:
            self.check_price(problem)

    def check_price(self, problem: Problem) -> None:
        """Refuse a question about money where a price is not known; raises `InputError`."""
        if usd_per_s(problem.cluster, self.terms) is None:
            names = ", ".join({group.accelerator.name: None for group in problem.cluster.groups})
            raise InputError(
                f"no price is known of {names}", fix="say it with --usd-per-gpu-hour, as 2.50"
            )

    def run(self, problem: Problem, step_time_s: float) -> RunCost:
        """The run to the token budget at a step time; there must be a budget."""
        training = problem.training
        assert training.token_budget is not None
        return run_cost(
            problem.cluster,
            step_time_s=step_time_s,
            tokens_per_step=training.tokens_per_step,
            token_budget=training.token_budget,
            terms=self.terms,
        )

    def misses(self, problem: Problem, step_time_s: float) -> str | None:
        """``too_slow`` or ``too_costly`` where a step this fast meets not every limit."""
        if not self.is_limited:
            return None
        run = self.run(problem, step_time_s)
        if self.deadline_s is not None and run.time_s > self.deadline_s:
            return "too_slow"
        if self.budget_usd is not None:
            assert run.cost_usd is not None
            if run.cost_usd > self.budget_usd:
                return "too_costly"
        return None

    def misses_in_words(self, problem: Problem, step_time_s: float) -> tuple[str, ...]:
        """By how much the limits are missed."""
        found, run = [], self.run(problem, step_time_s)
        if self.deadline_s is not None and run.time_s > self.deadline_s:
            more_s = run.time_s - self.deadline_s
            found.append(
                f"{problem.training.token_budget:,} tokens take {in_days(run.time_s)} on"
                f" {problem.world:,} devices ({run.goodput.fraction:.1%} of it in steps that"
                f" count), {in_days(more_s)} more than the {in_days(self.deadline_s)} allowed"
            )
        if self.budget_usd is not None and run.cost_usd is not None:
            more = run.cost_usd - self.budget_usd
            if more > 0:
                found.append(
                    f"the run costs {in_usd(run.cost_usd)} on {problem.world:,} devices,"
                    f" {in_usd(more)} more than the {in_usd(self.budget_usd)} allowed"
                )
        return tuple(found)


def in_days(seconds: float) -> str:
    """``61.3 days``, and hours where that is little."""
    if seconds < SECONDS_PER_DAY:
        return f"{seconds / 3600:,.1f} hours"
    return f"{seconds / SECONDS_PER_DAY:,.1f} days"


def in_usd(dollars: float) -> str:
    """``$1,234,567``."""
    return f"${dollars:,.0f}" if dollars >= 100 else f"${dollars:,.2f}"
