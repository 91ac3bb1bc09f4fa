"""Prices of partial layouts, each made once: what the search and its first dive look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwright.cost_models.stacks.step import StackModel
from shardwright.planner.problem import Problem
from shardwright.planner.stacks.bounds import ENDLESS_TOKENS, PerToken, PipelineBound, per_token
from shardwright.planner.stacks.choices import SPLITS, Cut, Grid, Pipeline
from shardwright.planner.stacks.space import StackSpace
from shardwright.planner.stacks.splits import balanced_split, even_split
from shardwright.planner.stacks.units import UnitBytes, UnitPricer, UnitTimes
from shardwright.specs.ranges import MOST_SEQUENCES


@dataclass(frozen=True, slots=True)
class Leaf:
    """A pipeline with its stages."""

    pipeline: Pipeline
    split: str
    starts: tuple[int, ...]
    """The first unit of stages 1, 2, ..."""
    bound_s: float
    needed_bytes: float
    """A bound as well."""


class StackPrices:
    """Prices under one problem and its constraints."""

    def __init__(self, problem: Problem, space: StackSpace, pricer: StackModel) -> None:
        self.problem, self.space, self.pricer = problem, space, pricer
        self.others = space.others
        self.has_offload = bool(self.others.get("offload"))
        """Then what is held is bounded by nothing."""
        self._units = UnitPricer(problem, pricer)
        policies = space.recomputes
        self._leanest = "full" if any("full" in policy for policy in policies) else policies[-1]
        self._times: dict[tuple[object, ...], UnitTimes] = {}
        self._bytes: dict[tuple[object, ...], UnitBytes] = {}
        self._least: dict[tuple[object, ...], PerToken] = {}
        self._cuts: dict[tuple[object, ...], list[tuple[Cut, PerToken]]] = {}

    def fits(self, needed_bytes: float) -> bool:
        """Whether so much may fit."""
        return self.has_offload or needed_bytes <= self.pricer.capacity_bytes

    def alone(self) -> tuple[float, float]:
        """Kernels of a micro-batch and bytes of state on one rank alone: no grid has less."""
        grid, cut = Grid(1, 1, 1, 1, 1, 1), Cut(False, "ring", 1, 1)
        total = self._units.times(grid, cut, "none", 0, {}).total
        state = self._units.bytes(grid, cut, "none", 0, {}).state
        return total["forward_kernels"] + total["kernels"], float(state[-1])

    def tokens(self, grid: Grid) -> float:
        """Of a micro-batch on one rank, before tensor parallelism."""
        return grid.micro_batch * self.problem.training.seq_len / grid.cp

    def _per_token(self, tp: int, cp: int, cut: Cut) -> PerToken:
        """What no micro-batch has less of for a token."""
        base = self._endless(tp, 1, cut._replace(cp_kind="ring"))
        if cp == 1:
            return base
        # Attention alone sees cp, and experts alone see ep and etp.
        plain = cut._replace(ep=1, etp=1)
        apart, whole = self._endless(tp, cp, plain), self._endless(tp, 1, plain)
        more_s = max(0.0, apart.work_s - whole.work_s)
        return PerToken(base.work_s + more_s, base.saved_bytes, base.moment_bytes)

    def _endless(self, tp: int, cp: int, cut: Cut) -> PerToken:
        if cp == 1:
            cut = cut._replace(cp_kind="ring")
        key = (tp, cp, cut)
        if key not in self._least:
            seq_len, policy = self.problem.training.seq_len, self.policy(self._leanest)
            size = min(max(1, ENDLESS_TOKENS * cp // seq_len), MOST_SEQUENCES)
            grid = Grid(tp, cp, 1, 1, size, 1)
            self._least[key] = per_token(
                self._units.times(grid, cut, "none", 0, self.others),
                self._units.bytes(grid, cut, policy, 0, self.others),
                size * seq_len / cp,
            )
        return self._least[key]

    def ordered_cuts(self, grid: Grid) -> list[tuple[Cut, PerToken]]:
        """Valid cuts of a grid, the least work for a token first."""
        key = (grid.tp, grid.cp, grid.dp, grid.micro_batch if "loss_chunks" in self.others else 0)
        if key not in self._cuts:
            cuts = [
                (cut, self._per_token(grid.tp, grid.cp, cut)) for cut in self.space.valid_cuts(grid)
            ]
            self._cuts[key] = sorted(cuts, key=lambda pair: (pair[1].work_s, pair[0]))
        return self._cuts[key]

    def policy(self, recompute: str) -> str:
        """The policy at which units are priced: where only some recompute, all do."""
        return "full" if "/" in recompute or "full" in recompute else recompute

    def times(self, grid: Grid, cut: Cut, recompute: str, zero: int) -> UnitTimes:
        """Of units; pp has no part in it, and dp none but where weights are gathered."""
        grid = grid._replace(pp=1, num_microbatches=1)
        if zero < 2:
            grid, zero = grid._replace(dp=1), 0
        key = (grid, cut, recompute, zero)
        if key not in self._times:
            self._times[key] = self._units.times(grid, cut, recompute, zero, self.others)
        return self._times[key]

    def bytes(self, grid: Grid, cut: Cut, recompute: str, zero: int) -> UnitBytes:
        key = (grid._replace(pp=1, num_microbatches=1), cut, recompute, zero)
        if key not in self._bytes:
            self._bytes[key] = self._units.bytes(grid, cut, recompute, zero, self.others)
        return self._bytes[key]

    def _starts(
        self, times: UnitTimes, grid: Grid, pipeline: Pipeline, split: str
    ) -> tuple[int, ...]:
        fixed = self.space.fixed_boundaries
        if fixed is not None:
            return tuple(layer + 1 for layer in fixed)
        num_stages = grid.pp * pipeline.vpp
        if split == SPLITS[0]:
            return balanced_split(times.total_s, num_stages)
        return even_split(len(times.total_s), num_stages)

    def leaves(self, grid: Grid, cut: Cut, recompute: str, zero: int) -> Iterator[Leaf]:
        """Every valid pipeline and split; of equal splits the first."""
        policy = self.policy(recompute)
        times, held = self.times(grid, cut, policy, zero), self.bytes(grid, cut, policy, zero)
        width = self.problem.model.decoder.hidden_size
        message_bytes = self.tokens(grid) * width * self.problem.training.dtypes.parameter_bytes
        for pipeline in self.space.valid_pipelines(grid):
            seen: set[tuple[int, ...]] = set()
            for split in self.space.splits(pipeline, grid.pp):
                starts = self._starts(times, grid, pipeline, split)
                if starts in seen:
                    continue
                seen.add(starts)
                bound = PipelineBound(
                    times, grid, pipeline, starts, self.pricer, recomputes=policy == recompute
                )
                needed_bytes = bound.peak_bytes(held, message_bytes)
                fits = self.fits(needed_bytes)
                step_s = bound.step_s() if fits else 0.0
                yield Leaf(pipeline, split, starts, step_s, needed_bytes)
