"""Every row of a file priced, or skipped with the reason: nothing that a row holds ends the whole.

The kinds of memory that a row may state, of the parts that a prediction has:

* ``allocated_or_unknown``: what tensors take up: all parts but ``fixed``;
* ``reserved``: that and the margin for fragmentation, what the allocator holds on to;
* ``device``: the whole peak and the process's context, which usable memory leaves out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from shardwright.cost_models.stacks.parts import PartTime
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.planner.validation.candidates import layouts_of, spares_of
from shardwright.planner.validation.choose import Predictor, Pricer, choose
from shardwright.planner.validation.clusters import accelerator_of
from shardwright.planner.validation.problem import Case, CaseMaker, reason_of
from shardwright.planner.validation.rows import MemoryKind, Row, Unreadable
from shardwright.specs import Layout, Prediction, ShardwrightError

logger = logging.getLogger(__name__)

FAULTS = ("cannot be read as a job", "the cost model failed")
"""With what the reasons begin that are our own fault and not the row's."""


@dataclass(frozen=True, slots=True)
class Job:
    """A row that can be priced, with every layout that it may have run."""

    case: Case
    layouts: tuple[Layout, ...]
    spares: tuple[Layout, ...] = ()
    """To fall back on where none of the layouts fits."""
    parts: tuple[PartTime, ...] = ()
    """What of the step was timed by itself."""

    @property
    def row(self) -> Row:
        return self.case.row


@dataclass(frozen=True, slots=True)
class Skip:
    """A row that cannot, and why."""

    row: Row | Unreadable
    reason: str


@runtime_checkable
class KnowsMemoryKinds(Protocol):
    """A predictor that itself tells the kinds of memory apart."""

    def memory_of_kind(self, layout: Layout, kind: MemoryKind) -> Sequence[int]:
        """Peak bytes of each pipeline rank as that kind of measurement reads them."""
        ...


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row's measurements beside its prediction; what is not known is None."""

    id: str
    stack: str | None
    accelerator: str | None
    problem: str | None
    configuration: str | None
    """Equal for repeats; None where the row could not be read."""
    is_full: bool
    measured_step_time_s: float | None
    measured_peak_memory_bytes: float | None
    memory_kind: MemoryKind
    measured_oom: bool
    is_fragmentation: bool
    capacity_bytes: int | None = None
    predicted_step_time_s: float | None = None
    band_s: tuple[float, float] | None = None
    predicted_peak_memory_bytes: float | None = None
    predicted_oom: bool | None = None
    is_at_risk: bool | None = None
    layout: Layout | None = None
    num_open: int = 0
    assumed: tuple[str, ...] = ()
    skipped: str | None = None

    @property
    def ratio(self) -> float | None:
        """Predicted over measured step time of a run that was not ended by lack of memory."""
        measured, predicted = self.measured_step_time_s, self.predicted_step_time_s
        if measured is None or predicted is None or self.measured_oom:
            return None
        return predicted / measured

    @property
    def is_comparable(self) -> bool:
        """Whether anything was measured that a prediction can be held to."""
        known = (self.measured_step_time_s, self.measured_peak_memory_bytes)
        return self.measured_oom or known != (None, None)

    @property
    def memory_ratio(self) -> float | None:
        measured, predicted = self.measured_peak_memory_bytes, self.predicted_peak_memory_bytes
        return None if measured is None or predicted is None else predicted / measured


def prepare(rows: Iterable[Row | Unreadable], maker: CaseMaker) -> tuple[Job | Skip, ...]:
    """Each row as a job, or why there is none."""
    return tuple(_prepared(row, maker) for row in rows)


def _prepared(row: Row | Unreadable, maker: CaseMaker) -> Job | Skip:
    if isinstance(row, Unreadable):
        return Skip(row, row.reason)
    try:
        case = maker.case_of(row)
        if isinstance(case, str):
            return Skip(row, case)
        return Job(case, layouts_of(case), spares_of(case))
    except Exception as error:
        return Skip(row, _told(error, row.id, FAULTS[0]))


def _told(error: Exception, row_id: str, what: str) -> str:
    """What a skipped row says of an error. One that is not the user's is our own fault: it is
    named and logged, but one row must not end the run of hundreds."""
    if isinstance(error, ShardwrightError):
        return reason_of(error)
    logger.debug("%s %s", row_id, what, exc_info=error)
    text = " ".join(str(error).split())[:200]
    return f"{what}: {type(error).__name__}: {text}"


def evaluate(
    items: Sequence[Job | Skip],
    pricer: Pricer,
    progress: Callable[[str, float], None] = lambda doing, fraction: None,
) -> list[RowResult]:
    """Every item priced or skipped, in order.

    Jobs that differ in layout alone share a predictor.
    """
    predictors: dict[object, Predictor] = {}
    results = []
    for number, item in enumerate(items):
        progress(item.row.id, number / len(items))
        if isinstance(item, Skip):
            results.append(skipped(item.row, item.reason))
            continue
        try:
            results.append(price(item, _predictor(item.case, pricer, predictors)))
        except Exception as error:
            results.append(skipped(item.row, _told(error, item.row.id, FAULTS[1]), item.case))
    return results


def _predictor(case: Case, pricer: Pricer, made: dict[object, Predictor]) -> Predictor:
    key = (id(case.model), id(case.profile), case.training, case.software)
    if key not in made:
        made[key] = pricer(case.model, case.training, case.profile, case.software)
    return made[key]


def price(job: Job, predictor: Predictor) -> RowResult:
    """One row beside the cheapest layout that it may have run.

    Raises:
        ShardwrightError: the cost model describes none of them.
    """
    choice = choose(predictor, job.layouts, job.spares)
    prediction, row, case = choice.prediction, job.row, job.case
    if isinstance(predictor, KnowsMemoryKinds):
        peaks = predictor.memory_of_kind(choice.layout, row.kind_of_memory)
    else:
        peaks = peaks_of_kind(prediction, row.kind_of_memory, case.profile)
    return _result(
        row,
        accelerator=case.accelerator,
        capacity_bytes=case.profile.devices.accelerator.memory_bytes,
        predicted_step_time_s=prediction.step_time_s,
        band_s=prediction.step_time_band_s,
        predicted_peak_memory_bytes=float(max(_read_ranks(peaks, row.measured.mem_note))),
        predicted_oom=not choice.fits,
        is_at_risk=choice.is_at_risk,
        layout=choice.layout,
        num_open=choice.num_open,
        assumed=case.assumed,
    )


def peaks_of_kind(
    prediction: Prediction, kind: MemoryKind, profile: HardwareProfile
) -> tuple[int, ...]:
    """Peak bytes of each pipeline rank as that kind of measurement reads them; see above."""
    parameters = {parameter.name: parameter.value for parameter in profile.parameters}
    fraction = parameters.get("memory.fragmentation_fraction", 0.0)
    device = profile.devices.accelerator
    context_bytes = device.memory_bytes - device.usable_memory_bytes
    peaks = []
    for rank in prediction.memory:
        live = rank.total_bytes - rank.fixed
        peak = {
            "allocated_or_unknown": live,
            "reserved": live + round(live * fraction),
            "device": rank.total_bytes + context_bytes,
        }[kind]
        peaks.append(peak)
    return tuple(peaks)


def _read_ranks(peaks: Sequence[int], note: str | None) -> Sequence[int]:
    """Of all pipeline ranks, those that a source says it looked at."""
    said = (note or "").lower()
    if "rank-0" in said or "rank 0" in said:
        return peaks[:1]
    if "first/last" in said:
        return [peaks[0], peaks[-1]]
    return peaks


def skipped(row: Row | Unreadable, reason: str, case: Case | None = None) -> RowResult:
    """A row without a prediction."""
    if isinstance(row, Row):
        accelerator = case.accelerator if case else accelerator_of(row.hardware)
        return _result(row, accelerator=accelerator, skipped=reason)
    return RowResult(
        id=row.id, stack=None, accelerator=None, problem=None, configuration=None, is_full=False,
        measured_step_time_s=None, measured_peak_memory_bytes=None,
        memory_kind="allocated_or_unknown", measured_oom=False, is_fragmentation=False,
        skipped=reason,
    )  # fmt: skip


def _result(row: Row, *, accelerator: str | None, **found: object) -> RowResult:
    return RowResult(
        id=row.id,
        stack=row.stack,
        accelerator=accelerator,
        problem=row.problem,
        configuration=row.configuration,
        is_full=row.is_full_configuration,
        measured_step_time_s=row.step_time_s if row.kind == "training_run" else None,
        measured_peak_memory_bytes=row.peak_memory_bytes,
        memory_kind=row.kind_of_memory,
        measured_oom=row.is_oom,
        is_fragmentation=row.is_fragmentation,
        **found,  # type: ignore[arg-type]
    )
