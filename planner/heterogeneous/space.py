"""Which layouts over several node groups are searched, and exactly how many there are.

An arrangement divides some of the groups among sets of replicas, and orders the groups of each set
along its pipeline. A set then chooses dp and zero, a micro-batch, ep, and for each of its groups
tp x pp = devices / dp and what is recomputed. Boundaries are open, and so are the counts of
micro-batches, as long as all sets together train the global batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shardwright.hardware_profiles.groups import group_names
from shardwright.planner.layout_text import normalise_choices
from shardwright.planner.problem import ChoiceValue, Constraints, Problem
from shardwright.specs import Layout, NodeGroup
from shardwright.specs.layout import is_too_long
from shardwright.specs.rules import (
    num_experts_of,
    precision_violations,
    recompute_modules_of,
)
from shardwright.specs.world import divisors

CHEAP_MODULES = ("norm", "mlp_act", "moe_act", "mla_up_proj")
"""Recomputed together as one policy: little work for many bytes (Korthikanti et al. 2022)."""

Arrangement = tuple[tuple[int, ...], ...]
"""For each set of replicas the indices of its groups, in the order of its pipeline."""

_PLAIN: dict[str, ChoiceValue] = {
    **dict.fromkeys(("cp", "vpp", "etp", "loss_chunks"), 1), "cp_kind": "ring", "compile": False,
    "reshard_after_forward": True, "offload": "none", "rank_order": "tp-cp-dp-pp",
}  # fmt: skip
"""What has one value over several groups."""
_NAMED = ("tp", "pp", "dp", "ep", "micro_batch", "zero", "recompute", "sequence_parallel",
          "schedule")  # fmt: skip
_UNFORBIDDEN: dict[str, ChoiceValue] = {
    **dict.fromkeys(("tp", "pp", "dp", "ep"), 1), "zero": 0, "recompute": "none",
    "sequence_parallel": False,
}  # fmt: skip
"""What is left where such a name is forbidden."""


class Segment(NamedTuple):
    """The part of a pipeline that is on one group."""

    group: int
    tp: int
    pp: int
    recompute: str


class SetChoice(NamedTuple):
    """One set of replicas but for its boundaries and its count of micro-batches."""

    segments: tuple[Segment, ...]
    dp: int
    micro_batch: int
    ep: int
    zero: int

    @property
    def pp(self) -> int:
        return sum(segment.pp for segment in self.segments)

    @property
    def samples(self) -> int:
        """Sequences of one micro-batch over all replicas of the set."""
        return self.dp * self.micro_batch


class SetFamily(NamedTuple):
    """Sets of replicas that differ in zero and in what each group recomputes alone."""

    plain: SetChoice
    """With zero 0 and nothing recomputed, whether the constraints leave that or not."""
    zeros: tuple[int, ...]
    policies: tuple[str, ...]

    @property
    def size(self) -> int:
        each: int = len(self.policies) ** len(self.plain.segments)
        return len(self.zeros) * each

    def choices(self) -> Iterator[SetChoice]:
        """All of them."""
        plain = self.plain.segments
        for zero in self.zeros:
            for policies in itertools.product(self.policies, repeat=len(plain)):
                segments = tuple(
                    one._replace(recompute=policy)
                    for one, policy in zip(plain, policies, strict=True)
                )
                yield self.plain._replace(segments=segments, zero=zero)


class MixedSpace:
    """The layouts over at least two groups that the constraints leave open."""

    def __init__(self, problem: Problem, constraints: Constraints) -> None:
        self.problem = problem
        self._fixed = normalise_choices(constraints.fixed)
        self._forbidden = constraints.forbidden
        self._bounds = constraints
        self._valid: dict[tuple[int, int, int], bool] = {}

    # What is open

    @cached_property
    def usable(self) -> tuple[int, ...]:
        """Groups whose devices compute in the precision."""
        cluster = self.problem.cluster
        return tuple(i for i, one in enumerate(cluster.groups) if not self.refusals(one))

    def refusals(self, group: NodeGroup) -> list[str]:
        """Why the devices of a group cannot be used."""
        alone = self.problem.cluster.model_copy(update={"groups": (group,)})
        return [str(one) for one in precision_violations(alone, self.problem.training)]

    @cached_property
    def arrangements(self) -> tuple[Arrangement, ...]:
        """Over two groups or more, sets ordered by their first group.

        Where groups are alike, of arrangements that differ in nothing else the first.
        """
        if self._is_closed:
            return ()
        groups = self.problem.cluster.groups
        found: dict[Arrangement, Arrangement] = {}
        for count in range(2, len(self.usable) + 1):
            for used in itertools.combinations(self.usable, count):
                for one in _sets_of_lists(used):
                    kinds = (tuple(groups.index(groups[index]) for index in part) for part in one)
                    found.setdefault(tuple(sorted(kinds)), one)
        return tuple(found.values())

    @property
    def _is_closed(self) -> bool:
        """Whether something is fixed that no layout of this space has."""
        if "stages" in self._fixed or "num_microbatches" in self._fixed:
            return True
        if self._bounds.bounds_of("num_microbatches"):
            return True
        return any(
            self._fixed.get(name, plain) != plain or not self._bounds.allows(name, plain)
            for name, plain in _PLAIN.items()
        )

    def allows(self, name: str, value: ChoiceValue) -> bool:
        """Whether the constraints leave a value."""
        if self._fixed.get(name, value) != value or not self._bounds.allows(name, value):
            return False
        for one in self._forbidden:
            field, equals, text = one.partition("=")
            if equals:
                ((key, unwanted),) = normalise_choices({field: text}).items()
                if key == name and unwanted == value:
                    return False
            elif _is_forbidden(field, name, value):
                return False
        return True

    @cached_property
    def recomputes(self) -> tuple[str, ...]:
        """Policies in the order of what they compute again."""
        known = recompute_modules_of(self.problem.model)
        policies = ["none"]
        if self.problem.software.attention_kernel == "math" and "core_attn" in known:
            policies.append("selective")
        cheap = [module for module in CHEAP_MODULES if module in known]
        if len(cheap) > 1:
            policies.append("selective:" + "+".join(cheap))
        policies.append("full")
        return tuple(one for one in policies if self.allows("recompute", one))

    def choices(self, groups: Sequence[int]) -> tuple[SetChoice, ...]:
        """Every set of replicas on these groups, one behind the other, that obeys the rules."""
        return tuple(choice for family in self.families(groups) for choice in family.choices())

    def families(self, groups: Sequence[int]) -> tuple[SetFamily, ...]:
        """The same, with what differs in zero and recompute alone together."""
        sizes = [self.problem.cluster.groups[group].num_devices for group in groups]
        found = []
        for dp in divisors(math.gcd(*sizes)):
            zeros = tuple(z for z in (range(4) if dp > 1 else (0,)) if self.allows("zero", z))
            if not self.allows("dp", dp) or not zeros or not self.recomputes:
                continue
            micro_batches = self._micro_batches(dp)
            for shapes in itertools.product(*(self._shapes(size // dp) for size in sizes)):
                if not self._fits_pipeline(sum(pp for _, pp in shapes)):
                    continue
                segments = tuple(
                    Segment(group, tp, pp, "none")
                    for group, (tp, pp) in zip(groups, shapes, strict=True)
                )
                found += [
                    SetFamily(SetChoice(segments, dp, size, ep, 0), zeros, self.recomputes)
                    for ep in self._expert_degrees(dp, [tp for tp, _ in shapes])
                    for size in micro_batches
                ]
        return tuple(found)

    def _shapes(self, devices: int) -> list[tuple[int, int]]:
        """(tp, pp) of a replica's devices on one group."""
        return [
            (tp, devices // tp)
            for tp in divisors(devices)
            if self.allows("tp", tp) and self.allows("sequence_parallel", tp > 1)
            and devices // tp <= self.problem.num_units
        ]  # fmt: skip

    def _fits_pipeline(self, pp: int) -> bool:
        schedule = "1f1b" if pp > 1 else "none"
        allowed = self.allows("pp", pp) and self.allows("schedule", schedule)
        return pp <= self.problem.num_units and allowed

    def _micro_batches(self, dp: int) -> list[int]:
        batch = self.problem.training.global_batch
        return [b for b in divisors(batch) if dp * b <= batch and self.allows("micro_batch", b)]

    def _expert_degrees(self, dp: int, tps: Sequence[int]) -> list[int]:
        """ep that every segment can have; none where a segment's tp breaks a rule."""
        experts = num_experts_of(self.problem.model)
        degrees = divisors(math.gcd(*experts)) if experts else [1]
        return [
            ep for ep in degrees
            if self.allows("ep", ep) and all(self._is_valid(tp, dp, ep) for tp in set(tps))
        ]  # fmt: skip

    def _is_valid(self, tp: int, dp: int, ep: int) -> bool:
        key = (tp, dp, ep)
        if key not in self._valid:
            self._valid[key] = tp * dp % ep == 0 and not self._plain(tp, dp, ep).grid_violations(
                self.problem.model, self.problem.training
            )
        return self._valid[key]

    def _plain(self, tp: int, dp: int, ep: int) -> Layout:
        return Layout.of(
            self.problem.model, self.problem.training, tp=tp, dp=dp, ep=ep,
            sequence_parallel=tp > 1,
        )  # fmt: skip

    # Counts

    def num_layouts(self, arrangement: Arrangement) -> int:
        """Layouts of an arrangement: choices, boundaries and counts of micro-batches."""
        batch = self.problem.training.global_batch
        total = np.zeros(batch + 1, dtype=object)
        total[0] = 1
        for groups in arrangement:
            ways = self._ways(groups)
            found = np.zeros(batch + 1, dtype=object)
            for samples in np.flatnonzero(ways):
                found[samples:] += ways[samples] * total[: batch + 1 - samples]
            total = found
        return int(total[batch])

    def _ways(self, groups: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
        """How many sets of replicas train so many sequences a step."""
        batch, units = self.problem.training.global_batch, self.problem.num_units
        ways = np.zeros(batch + 1, dtype=object)
        grouped: dict[tuple[int, int], int] = {}
        for family in self.families(groups):
            key = (family.plain.samples, family.plain.pp)
            grouped[key] = grouped.get(key, 0) + family.size
        for (samples, pp), count in grouped.items():
            longest = max(
                (m for m in range(batch // samples, 0, -1) if not is_too_long(pp, m)), default=0
            )
            counted = count * math.comb(units - 1, pp - 1)
            ways[samples : samples * longest + 1 : samples] += counted
        return ways

    @property
    def in_words(self) -> str:
        """Which choices are open, for the certificate."""
        if self._is_closed:
            return "over several groups nothing: no such layout has all that is fixed"
        names = group_names(self.problem.cluster)
        used = " and ".join(names[index] for index in self.usable)
        return (
            f"over {used}: every division of two groups or more among sets of replicas, in every"
            " order along their pipelines; for each set every dp, ep, zero 0 to 3 over its dp,"
            " every micro_batch that divides the batch, and for each group every tp x pp ="
            f" devices / dp with sequence_parallel, recompute {' or '.join(self.recomputes)};"
            f" every boundary; every count of micro-batches; schedule 1f1b{self._alike}"
        )

    @property
    def _alike(self) -> str:
        groups = [self.problem.cluster.groups[index] for index in self.usable]
        has_alike = any(one == other for one, other in itertools.combinations(groups, 2))
        return "; groups that are alike in one order" if has_alike else ""


def _is_forbidden(word: str, name: str, value: ChoiceValue) -> bool:
    """Whether a forbidden word without a value rules out this value of a choice."""
    if word == "sp":
        return name == "sequence_parallel" and value is True
    if word.startswith("zero") and word[4:].isdigit():
        return name == "zero" and value == int(word[4:])
    if word == "1f1b":
        return name == "schedule" and value == word
    return word == name and name in _UNFORBIDDEN and value != _UNFORBIDDEN[name]


def _sets_of_lists(groups: Sequence[int]) -> Iterator[Arrangement]:
    """Every division of all the groups into ordered lists, the lists by their smallest group."""
    if not groups:
        yield ()
        return
    first, rest = groups[0], groups[1:]
    for count in range(len(rest) + 1):
        for others in itertools.combinations(rest, count):
            left = tuple(group for group in rest if group not in others)
            for own in itertools.permutations((first, *others)):
                for more in _sets_of_lists(left):
                    yield (own, *more)
