"""What a rank built and did in a dry run, against the books of its plan: number by number.

Layers, parameters by name, groups by their ranks, calls by kind, bytes and group, FLOPs and what is
kept between steps are equal or differ. Live bytes at the fullest moment are equal up to what the
books leave out, which is stated: counts of steps and sums, a few bytes for each parameter. Three
cases are less exact: where ZeRO 3 gathers, the books know when gradients arrive only unit by unit
and are an upper bound; of a backward in two halves they know what is kept between these only stage
by stage; on a stage without units they count messages twice.

Books follow from the plan's layout as it is now. That the layout is still the one that was priced
is seen from the plan's own record of memory, which must be what its cost model gives today.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from shardwright.cost_models.pricing import step_model
from shardwright.cost_models.rank_books import Call, KeptUnit, RankBooks
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.runtime.audit import layers_of, parameter_problems
from shardwright.runtime.dry_rank import BuiltRank
from shardwright.runtime.dry_report import Check, RankReport, Unit, ranks_in_words
from shardwright.specs import ActionKind, MemoryParts, Plan, ScheduleName
from shardwright.specs.units import format_bytes

UNBOOKED_BYTES = 64
"""Of a step: sums of losses and norms, counts of tokens."""
UNBOOKED_BYTES_PER_PARAMETER = 4
"""AdamW's count of steps, fp32, one for each run of parameters that are treated alike."""
LATE_GRADIENTS = 0.03
"""Under ZeRO 3 the fraction by which live bytes may stay below the books; 0.023 is the most that
was seen, on models of a few thousand parameters (benchmarks/dry_run.md)."""

BETWEEN_HALVES = 0.02
"""The fraction by which live bytes may miss the books where backward is split."""


def audit_rank(plan: Plan, built: BuiltRank, profile: HardwareProfile | None) -> RankReport:
    """Hold one rank against the plan.

    ``profile``: what the plan was priced from; without it its record is not checked.
    """
    comparison = _Comparison(plan, built)
    comparison.model()
    comparison.groups()
    comparison.calls()
    comparison.memory()
    comparison.room()
    if profile is not None and plan.layout.schedule is not ScheduleName.CUSTOM:
        comparison.record(priced_again(plan, profile)[built.at.pp])
    return RankReport(
        rank=built.rank,
        tp=built.at.tp,
        dp=built.at.dp,
        pp=built.at.pp,
        checks=tuple(comparison.checks),
        differences=tuple(comparison.differences),
    )


def priced_again(plan: Plan, profile: HardwareProfile) -> tuple[MemoryParts, ...]:
    """The memory of each pipeline rank, by the cost model that made the plan."""
    return step_model(plan.model, plan.training, profile, plan.software).memory(plan.layout)


class _Comparison:
    """Gathers checks and differences of one rank."""

    def __init__(self, plan: Plan, built: BuiltRank) -> None:
        self._plan, self._built = plan, built
        self._books = RankBooks(plan.model, plan.training, plan.layout, built.rank, plan.schedule)
        self.checks: list[Check] = []
        self.differences: list[str] = []

    def _check(
        self,
        what: str,
        planned: int | str,
        built: int | str,
        unit: Unit = "",
        *,
        is_sum: bool = False,
    ) -> None:
        """Equal, or a difference; of sums, each part is told in a line of its own elsewhere."""
        agrees = planned == built
        self.checks.append(Check(what=what, unit=unit, planned=planned, built=built, agrees=agrees))
        if not agrees and not is_sum:
            given, wanted = (_in_words(value, unit) for value in (built, planned))
            self.differences.append(f"{what}: {given} built, {wanted} planned")

    def model(self) -> None:
        """Layers and parameters."""
        books, built = self._books, self._built
        shards = built.parameters
        self._check("layers", _layers_in_words(books.layers), _layers_in_words(layers_of(shards)))
        planned = sum(parameter.numel for parameter in books.parameters)
        self._check("parameters", planned, sum(p.numel() for p in shards.values()), "parameters")
        self._check("parameters", books.parameter_bytes, built.parameter_bytes, "bytes")
        self.differences += parameter_problems(books.parameters, shards)

    def groups(self) -> None:
        """The ranks of each group that was made."""
        for name, ranks in self._built.groups.items():
            planned = self._books.groups[name]
            if len(planned) > 1 or len(ranks) > 1:
                self._check(f"group {name}", ranks_in_words(planned), ranks_in_words(ranks))

    def calls(self) -> None:
        """Collectives and sends by kind and group, in all and one by one; FLOPs."""
        planned, built = self._books.calls(), self._built.calls
        names = _names_of_groups(self._books.groups)
        of_plan, of_run = _by_kind_and_group(planned, names), _by_kind_and_group(built, names)
        for what in dict.fromkeys((*of_plan, *of_run)):
            for place, unit in enumerate(_CALL_UNITS):
                wanted, found = (of.get(what, (0, 0))[place] for of in (of_plan, of_run))
                self._check(what, wanted, found, unit, is_sum=True)
        self.differences += _different_calls(planned, built)
        self._check("FLOPs", self._books.flops(), self._built.flops, "FLOPs")

    def memory(self) -> None:
        """What units keep between steps, and the fullest moment of the step."""
        planned, built = self._books.kept(), self._built.kept
        for what in ("weight", "gradient", "optimizer"):
            wanted, found = (
                sum(getattr(unit, f"{what}_bytes") for unit in kept) for kept in (planned, built)
            )
            self._check(_KEPT[what], wanted, found, "bytes", is_sum=True)
        self.differences += _different_units(planned, built)
        live = self._books.memory().total_bytes
        agrees = self._is_as_booked(live)
        found = self._built.peak_bytes
        self.checks.append(
            Check(what="live bytes", unit="bytes", planned=live, built=found, agrees=agrees)
        )
        if not agrees:
            self.differences.append(f"live bytes: {found:,} B built, {live:,} B planned")

    def _is_as_booked(self, planned: int) -> bool:
        unbooked = UNBOOKED_BYTES + UNBOOKED_BYTES_PER_PARAMETER * len(self._books.parameters)
        more = self._built.peak_bytes - planned
        if not self._built.kept:  # a stage without units
            return more <= unbooked
        late = LATE_GRADIENTS * planned if self._plan.layout.zero == 3 else 0
        halves = BETWEEN_HALVES * planned if self._splits_backward() else 0
        return -max(late, halves) <= more <= max(unbooked, halves)

    def _splits_backward(self) -> bool:
        schedule = self._plan.schedule
        return schedule is not None and any(
            part.kind is ActionKind.BACKWARD_INPUT
            for action in schedule.ranks[self._built.at.pp]
            for part in action.parts or (action,)
        )

    def room(self) -> None:
        """Whether tensors and the plan's fixed part fit, while it is built and in the step."""
        prediction = self._plan.prediction
        fixed = prediction.memory[self._built.at.pp].fixed
        room = prediction.memory_capacity_bytes
        for what, live in (
            ("most while it is built", self._built.building_peak_bytes),
            ("most with its fixed part", self._built.peak_bytes + fixed),
        ):
            fits = live <= room or prediction.memory_verdict == "does_not_fit"
            self.checks.append(Check(
                what=what, planned=f"at most {format_bytes(room)}", built=format_bytes(live),
                agrees=fits,
            ))  # fmt: skip
            if not fits:
                self.differences.append(
                    f"{what}: {format_bytes(live)} do not fit into {format_bytes(room)}"
                )

    def record(self, again: MemoryParts) -> None:
        """The plan's own record of its price against the price of its layout as it is now."""
        given = self._plan.prediction.memory[self._built.at.pp]
        self.checks.append(Check(
            what="price in the plan", unit="bytes", planned=given.total_bytes,
            built=again.total_bytes, agrees=given == again,
        ))  # fmt: skip
        for name, value in again.model_dump().items():
            recorded = getattr(given, name)
            if recorded != value:
                self.differences.append(
                    f"the plan records {recorded:,} B of {name.replace('_', ' ')}, its layout has"
                    f" {value:,} B: it was altered, or priced by another version of shardwright"
                )


_KEPT = {"weight": "weights kept", "gradient": "gradients kept",
         "optimizer": "optimizer state kept"}  # fmt: skip


_CALL_UNITS: tuple[Unit, ...] = ("calls", "bytes")


def _in_words(value: int | str, unit: Unit) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,} {'B' if unit == 'bytes' else unit}".rstrip()


def _layers_in_words(layers: tuple[int, ...]) -> str:
    return ranks_in_words(layers).replace("ranks", "layers") if layers else "none"


def _names_of_groups(groups: dict[str, tuple[int, ...]]) -> dict[tuple[int, ...], str]:
    """The narrowest name of each set of ranks, where several groups are the same."""
    order = ("tp", "shard", "replica", "dp", "pp", "embedding", "world")
    return {groups[name]: name for name in reversed(order)}


def _by_kind_and_group(
    calls: Counter[Call], names: dict[tuple[int, ...], str]
) -> dict[str, tuple[int, int]]:
    """Number and bytes of the calls of each kind in each group."""
    found: dict[str, tuple[int, int]] = {}
    for (kind, size, ranks), times in sorted(calls.items()):
        what = f"{kind} in {names.get(ranks) or ranks_in_words(ranks)}"
        before = found.get(what, (0, 0))
        found[what] = (before[0] + times, before[1] + times * size)
    return found


def _different_calls(planned: Counter[Call], built: Counter[Call]) -> Iterator[str]:
    for call in sorted(planned.keys() | built.keys()):
        if planned[call] != built[call]:
            kind, size, ranks = call
            yield (
                f"{kind} of {size:,} B in ranks {ranks_in_words(ranks)}: {built[call]:,} calls"
                f" made, {planned[call]:,} planned"
            )


def _different_units(planned: Iterable[KeptUnit], built: Iterable[KeptUnit]) -> Iterator[str]:
    wanted, found = ({unit.name: unit for unit in units} for units in (planned, built))
    for name in dict.fromkeys((*wanted, *found)):
        if wanted.get(name) != found.get(name):
            yield f"unit {name} keeps {found.get(name)}, planned {wanted.get(name)}"
