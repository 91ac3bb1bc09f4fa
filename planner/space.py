"""Which layouts there are, exactly how many, and which of them obey the rules.

The space is a product: every tp x pp x dp that uses the whole world, sequence parallelism, every
micro-batch that divides the global batch, the schedule, ZeRO, recompute, and every way to cut the
model's units into pp stages. It is enumerated but for the cuts, which are counted: units are the
embedding, each layer, and the final norm with the head, a stage holds one at least, and so U units
have C(U - 1, pp - 1) cuts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

from shardwright.planner.bounds_text import bounds_in_words, nothing_between
from shardwright.planner.choices import RECOMPUTE_POLICIES, SCHEDULES, ZERO_STAGES, Choices
from shardwright.planner.layout_text import DEGREES, normalise_choices, unknown_name
from shardwright.planner.layouts import boundaries_of, even_boundaries
from shardwright.planner.problem import PEAK_MEMORY, ChoiceValue, Constraints, Problem
from shardwright.specs import InputError, Violation
from shardwright.specs.layout import is_too_long
from shardwright.specs.world import WorldSize, dense_grids, divisors


def _is(name: str, value: ChoiceValue, choices: Choices) -> bool:
    return choices.value(name) == value


def _is_not(name: str, plain: ChoiceValue, choices: Choices) -> bool:
    return choices.value(name) != plain


def _never(_: Choices) -> bool:
    return False


FORBIDDABLE: dict[str, Callable[[Choices], bool]] = {
    **{name: partial(_is_not, name, 1) for name in DEGREES},
    "sequence_parallel": partial(_is, "sequence_parallel", True),
    "sp": partial(_is, "sequence_parallel", True),
    "recompute": partial(_is_not, "recompute", "none"),
    "zero": partial(_is_not, "zero", 0),
    **{f"zero{zero}": partial(_is, "zero", zero) for zero in ZERO_STAGES},
    **{name: partial(_is, "schedule", name) for name in SCHEDULES},
    "offload": _never,
    "compile": _never,
}
"""What can be forbidden by name, and the choices that this rules out. What the space never does
(offload, compile) may be forbidden too."""


MOST_GRIDS = 20_000
"""Grids times sizes of micro-batches; each has up to two dozen further choices."""


@dataclass(frozen=True)
class Space:
    """The layouts of a problem that its constraints leave open.

    Raises:
        InputError: on first use of what depends on it, a constraint that names nothing, or
            constraints that leave no layout at all.
    """

    problem: Problem
    constraints: Constraints

    @cached_property
    def _open(self) -> tuple[Choices, ...]:
        """Choices that meet the constraints, whether or not they obey the rules, by key."""
        _check_size(self.problem)
        fixed = normalise_choices(self.constraints.fixed)
        if self.fixed_boundaries is not None:
            fixed["pp"] = len(self.fixed_boundaries) + 1
            del fixed["stages"]
        forbidden = [self._forbidden(name) for name in sorted(self.constraints.forbidden)]
        candidates = list(_all_choices(self.problem))
        for name, wanted in fixed.items():
            left = [choices for choices in candidates if choices.value(name) == wanted]
            if not left:
                raise _no_such_value(name, wanted, candidates)
            candidates = left
        candidates = self._bounded(candidates)
        candidates = [c for c in candidates if not any(test(c) for test in forbidden)]
        if not candidates:
            raise InputError(
                f"nothing is left of the space without {', '.join(self.constraints.forbidden)}",
                fix="forbid less, or fix less",
            )
        return tuple(sorted(candidates, key=lambda choices: choices.key))

    def _bounded(self, candidates: list[Choices]) -> list[Choices]:
        """Those within every bound; raises `InputError` where none is."""
        for name in dict.fromkeys(bound.name for bound in self.constraints.bounds):
            if name == PEAK_MEMORY:
                continue
            left = [c for c in candidates if self.constraints.allows(name, c.value(name))]
            if not left:
                bounds = self.constraints.bounds_of(name)
                raise nothing_between(bounds, (c.value(name) for c in candidates))
            candidates = left
        return candidates

    @cached_property
    def fixed_boundaries(self) -> tuple[int, ...] | None:
        """The boundaries that the user fixed, if any."""
        fixed = normalise_choices(self.constraints.fixed)
        stops = fixed.get("stages")
        if not isinstance(stops, tuple):
            return None
        if fixed.get("pp", len(stops)) != len(stops):
            raise InputError(
                f"pp = {fixed['pp']}, but {len(stops)} stages are given",
                fix=f"set pp to {len(stops)}, or leave it out",
            )
        boundaries = boundaries_of(stops, self.problem)
        if any(stop <= start for start, stop in itertools.pairwise(boundaries)):
            raise InputError(
                "a stage between the first and the last holds no layer",
                fix="give every stage in between one layer at least",
            )
        return boundaries

    def num_cuts(self, pp: int) -> int:
        """In how many ways the model is cut into pp stages."""
        if self.fixed_boundaries is not None:
            return int(len(self.fixed_boundaries) + 1 == pp)
        return math.comb(self.problem.num_units - 1, pp - 1)

    @cached_property
    def valid(self) -> tuple[Choices, ...]:
        """Choices that obey every rule of `Layout.violations`, by key."""
        return tuple(choices for choices in self._open if not self._breaks_rules(choices))

    @cached_property
    def considered(self) -> int:
        """Layouts in the space."""
        return sum(self.num_cuts(choices.pp) for choices in self._open)

    @property
    def excluded_by_rules(self) -> int:
        """Layouts in the space that break a rule."""
        return self.considered - sum(self.num_cuts(choices.pp) for choices in self.valid)

    def violations(self) -> list[Violation]:
        """The rules that the first choices break; empty where they break none."""
        first = self._open[0]
        return self._violations(first)

    @property
    def in_words(self) -> str:
        """Which choices are open, for the certificate."""
        parts = [
            f"every tp x pp x dp = {self.problem.world} (cp = ep = etp = vpp = 1)",
            "sequence_parallel off or on",
            f"every micro_batch that divides {self.problem.training.global_batch} sequences",
            "schedule 1f1b or gpipe",
            "zero 0, 1 or 3 over the whole dp",
            "recompute none or full on all stages alike",
            "every stage boundary with one layer, the embedding or the head per stage at least",
        ]
        if self.constraints.fixed:
            fixed = normalise_choices(self.constraints.fixed)
            parts.append("fixed: " + ", ".join(f"{k} = {v}" for k, v in sorted(fixed.items())))
        if self.constraints.forbidden:
            parts.append("without " + ", ".join(sorted(self.constraints.forbidden)))
        if self.constraints.bounds:
            parts.append("bound: " + bounds_in_words(self.constraints.bounds))
        return "; ".join(parts)

    def _forbidden(self, name: str) -> Callable[[Choices], bool]:
        field, equals, value = name.partition("=")
        if equals:
            (key, unwanted), = normalise_choices({field: value}).items()  # fmt: skip
            if key == "stages":
                raise InputError("boundaries cannot be forbidden", fix="fix them instead")
            return partial(_is, key, unwanted)
        if name not in FORBIDDABLE:
            raise unknown_name(name, FORBIDDABLE, what="choice that can be forbidden")
        return FORBIDDABLE[name]

    def _breaks_rules(self, choices: Choices) -> bool:
        per_step = choices.dp * choices.micro_batch * choices.num_microbatches
        if per_step != self.problem.training.global_batch:
            return True
        if is_too_long(choices.pp, choices.num_microbatches):
            return True
        grid = (choices.tp, choices.pp, choices.sequence_parallel)
        if grid not in self._grid_breaks_rules:
            self._grid_breaks_rules[grid] = bool(self._violations(choices))
        return self._grid_breaks_rules[grid]

    @cached_property
    def _grid_breaks_rules(self) -> dict[tuple[int, int, bool], bool]:
        """Rules other than the batch's depend on the grid and sequence parallelism alone."""
        return {}

    def _violations(self, choices: Choices) -> list[Violation]:
        problem = self.problem
        layout = choices.layout(problem, even_boundaries(problem, choices.pp))
        return layout.violations(problem.model, problem.cluster, problem.training)


def _all_choices(problem: Problem) -> Iterator[Choices]:
    """Every choice, by rule or not; grids with more stages than units have no layout at all."""
    global_batch = problem.training.global_batch
    for grid in _grids(problem):
        for micro_batch in divisors(global_batch):
            num_microbatches = max(1, global_batch // (grid.dp * micro_batch))
            for zero in ZERO_STAGES if grid.dp > 1 else (0,):
                for sequence_parallel in (False, True) if grid.tp > 1 else (False,):
                    for recompute in RECOMPUTE_POLICIES:
                        for schedule in SCHEDULES if grid.pp > 1 else ("none",):
                            yield Choices(
                                grid.tp, grid.pp, grid.dp, micro_batch, num_microbatches, zero,
                                sequence_parallel, recompute, schedule,
                            )  # fmt: skip


def _grids(problem: Problem) -> Iterator[WorldSize]:
    for grid in dense_grids(problem.world):
        if grid.cp == 1 and grid.pp <= problem.num_units:
            yield grid


def _check_size(problem: Problem) -> None:
    """Refuse, before they are listed, more choices than anyone would wait for."""
    batch = problem.training.global_batch
    num_grids, num_sizes = len(list(_grids(problem))), len(divisors(batch))
    if num_grids * num_sizes > MOST_GRIDS:
        raise InputError(
            f"{problem.world:,} devices and {batch:,} sequences a step leave {num_grids:,} grids x"
            f" {num_sizes} micro-batches, more than the {MOST_GRIDS:,} that are searched",
            fix="choose a number of devices and a --global-batch with fewer divisors, such as"
            f" {2 ** round(math.log2(problem.world))} and {2 ** round(math.log2(batch))}",
        )


def _no_such_value(name: str, wanted: object, candidates: list[Choices]) -> InputError:
    values = sorted({choices.value(name) for choices in candidates}, key=str)
    values.sort(key=lambda value: value if isinstance(value, int) else 0)
    shown = ", ".join(str(value) for value in values[:12]) + (", ..." if len(values) > 12 else "")
    return InputError(
        f"no layout has {name} = {wanted}",
        why=f"with what else is fixed, {name} is one of: {shown}",
        fix=f"fix {name} to one of these, or leave it open",
    )
