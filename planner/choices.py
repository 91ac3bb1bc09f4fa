"""`Choices`: everything that is decided about a layout of our own runtime but its boundaries.

A layout is one `Choices` and one tuple of boundaries. What the runtime does not do yet, and what
this search does not vary (several stages per rank), has one value (`_CONSTANT`); layouts on other
software have more (`planner.stacks.choices`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.planner.layout_text import SHARD_DEGREES
from shardwright.planner.problem import ChoiceValue, Problem
from shardwright.specs import Layout, Recompute, ScheduleName

RECOMPUTE_POLICIES: tuple[str, ...] = ("none", "full")
SCHEDULES: tuple[str, ...] = (str(ScheduleName.ONE_F_ONE_B), str(ScheduleName.GPIPE))
ZERO_STAGES = (0, 1, 3)

_CONSTANT: dict[str, ChoiceValue] = {
    **dict.fromkeys(("cp", "vpp", "ep", "etp", "loss_chunks"), 1),
    "cp_kind": "ring",
    "reshard_after_forward": True,
    "compile": False,
    "offload": "none",
    "rank_order": "tp-cp-dp-pp",
}


@dataclass(frozen=True, slots=True)
class Choices:
    """One choice of everything but the boundaries. Context and expert parallelism are 1."""

    tp: int
    pp: int
    dp: int
    micro_batch: int
    num_microbatches: int
    """Rounded down where dp x micro_batch does not divide the global batch (a broken rule)."""
    zero: int
    sequence_parallel: bool
    recompute: str
    schedule: str
    """``none`` where pp = 1."""

    @property
    def key(self) -> tuple[int, ...]:
        """What orders equally good choices: the smaller key is the plainer layout."""
        return (
            self.tp, self.pp, self.dp, self.micro_batch, self.zero, int(self.sequence_parallel),
            RECOMPUTE_POLICIES.index(self.recompute),
            SCHEDULES.index(self.schedule) if self.pp > 1 else 0,
        )  # fmt: skip

    def value(self, name: str) -> ChoiceValue:
        """The value of any name of `layout_text` but ``stages``."""
        if name in _CONSTANT:
            return _CONSTANT[name]
        if name in SHARD_DEGREES:
            return self.dp if self.zero else 1
        value: ChoiceValue = getattr(self, name)
        return value

    def layout(self, problem: Problem, boundaries: tuple[int, ...]) -> Layout:
        """The layout with these choices whose stages start at the given layers."""
        return Layout.of(
            problem.model,
            problem.training,
            boundaries=boundaries,
            recompute=Recompute.model_validate({"policy": self.recompute}),
            tp=self.tp,
            pp=self.pp,
            dp=self.dp,
            micro_batch=self.micro_batch,
            zero=self.zero,
            sequence_parallel=self.sequence_parallel,
            schedule=self.schedule,
        )
