"""Layouts of one job timed in turn on the same ranks: what one rank of a trial does.

Rounds are interleaved (A B C A B C ...), warm-up steps are dropped, and a step's time is that of
the slowest rank. All ranks know the same times, so each knows by itself which layouts go on
(`race`). What a visit found is written down at once, so that a layout that brings a rank down costs
no other's times: `shardwright.runtime.sessions` starts new ranks for those that are left.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.hardware_profiles.device import synchronize
from shardwright.runtime.data.batches import BatchSource
from shardwright.runtime.data.samples import SampleSource
from shardwright.runtime.job import Job
from shardwright.runtime.models import build_rank
from shardwright.runtime.optimizer import learning_rate
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.preflight import check_hardware, check_world, look_around, open_data
from shardwright.runtime.race import Race, Rules
from shardwright.runtime.ranks import Membership, explained, membership, together
from shardwright.runtime.rendezvous import Rendezvous
from shardwright.runtime.step import TrainStep
from shardwright.runtime.stopwatch import TERMS, Term, during, watching
from shardwright.specs import Layout, Plan, Prediction, Spec

VISITS_FILE = "visits.jsonl"


FIRST_WARM_UP_STEPS = 2
"""Steps of a layout's first visit that are not timed: they allocate, connect and tune."""
WARM_UP_STEPS = 1
"""Of later visits: the layouts in between had the caches, the heap and the links."""


class Entry(Spec):
    """One layout of a trial."""

    layout: Layout
    prediction: Prediction


class Visit(Spec):
    """One layout's timed steps in one round."""

    index: NonNegativeInt
    """Of the layout, among the trial's entries."""
    step_times_s: tuple[PositiveFloat, ...] = Field(min_length=1)
    """The slowest rank's, step by step."""
    terms_s: tuple[dict[str, float], ...]
    """By global rank: mean seconds of a timed step by `shardwright.runtime.stopwatch.Term`."""


class Failure(Spec):
    """A layout that cannot be timed."""

    index: NonNegativeInt
    reason: str


class TrialJob(Spec):
    """All that the ranks of a trial must know; with what earlier ranks found already."""

    plan: Plan
    """Of the job: model, training, cluster and environment count."""
    entries: tuple[Entry, ...] = Field(min_length=1)
    data: str = "mock"
    num_rounds: PositiveInt = 10
    steps_per_visit: PositiveInt = 2
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    resolution: float = Field(default=0.01, ge=0, lt=1)
    """Layouts that differ by less than this fraction need not be told apart."""
    races: bool = True
    """Drop layouts that are slower beyond doubt, and end early; else all rounds of all layouts."""
    timeout_s: PositiveFloat = 300.0
    """How long a rank waits for the others in one collective before it gives up."""
    visits: tuple[Visit, ...] = ()
    failures: tuple[Failure, ...] = ()

    def running(self) -> list[int]:
        """Layouts of which another visit is wanted."""
        failed = {failure.index for failure in self.failures}
        times = self.round_times_s()
        alive = [index for index in range(len(self.entries)) if index not in failed]
        if not any(times):
            return alive
        if not self.races:
            return [index for index in alive if len(times[index]) < self.num_rounds]
        race = self.race()
        fewest = min(len(times[index]) for index in alive)
        if fewest == 0:
            return alive
        return [index for index in race.running() if index in alive]

    def round_times_s(self) -> list[list[float]]:
        """``[layout][round]``: the median of a visit's steps."""
        found: list[list[float]] = [[] for _ in self.entries]
        failed = {failure.index for failure in self.failures}
        for visit in self.visits:
            if visit.index not in failed:
                found[visit.index].append(statistics.median(visit.step_times_s))
        return found

    def race(self) -> Race:
        """What the visits say so far; there must be one."""
        rules = Rules(self.num_rounds, len(self.entries), self.confidence, self.resolution)
        return Race(rules, self.round_times_s())

    def keeps_layouts(self) -> bool:
        """Whether all layouts can stay built side by side: weights, gradients and optimizer states
        of all of them, and what else the hungriest one needs."""
        kept = most_else = 0
        for entry in self.entries:
            parts = entry.prediction.memory
            state = [part.weights + part.gradients + part.optimizer_state for part in parts]
            kept += max(state)
            else_bytes = (part.total_bytes - own for part, own in zip(parts, state, strict=True))
            most_else = max(most_else, *else_bytes)
        capacity = min(entry.prediction.memory_capacity_bytes for entry in self.entries)
        return kept + most_else <= capacity


def take_part(job: TrialJob, rendezvous: Rendezvous, folder: Path) -> None:
    """Run the trial as one rank; rank 0 leaves each visit in ``folder``, every rank which layout it
    is at.

    Raises:
        InputError: other hardware, another world size, or unusable data, on every rank alike.
        RunError: a lost peer, no memory, a mismatch.
    """
    here = look_around(job.plan.layout.world, rendezvous)
    with (
        membership(rendezvous, job.timeout_s, pins=True) as member,
        explained(member.rank, "while the trial was prepared"),
    ):
        opened: list[SampleSource] = []

        def check_and_open() -> None:
            check_world(job.plan, rendezvous)
            check_hardware(job.plan, rendezvous.rank, here)
            as_run = Job(plan=job.plan, data=job.data, steps=1)
            opened.append(open_data(as_run, progress=rendezvous.rank == 0))

        together(check_and_open)
        _Visitor(job, member, opened[0], folder).run()


class _Visitor:
    """One rank, going from layout to layout."""

    def __init__(
        self, job: TrialJob, member: Membership, samples: SampleSource, folder: Path
    ) -> None:
        self._job = job
        self._member = member
        self._samples = samples
        self._folder = folder
        self._keeps = job.keeps_layouts()
        self._built: dict[int, _Built] = {}
        self._groups: dict[int, ParallelGroups] = {}
        self._seen: set[int] = set()

    def run(self) -> None:
        """Round after round, until the race is over."""
        while running := _order_of(self._job):
            for index in running:
                _visiting_file(self._folder, self._member.rank).write_text(str(index))
                with explained(self._member.rank, "in a trial"):
                    visit = self._visit(index)
                self._job = self._job.model_copy(update={"visits": (*self._job.visits, visit)})
                if self._member.rank == 0:
                    with (self._folder / VISITS_FILE).open("a", encoding="utf-8") as file:
                        file.write(visit.model_dump_json() + "\n")
        _visiting_file(self._folder, self._member.rank).unlink(missing_ok=True)

    def _visit(self, index: int) -> Visit:
        built = self._build(index)
        warm_up = WARM_UP_STEPS if index in self._seen else FIRST_WARM_UP_STEPS
        self._seen.add(index)
        for _ in range(warm_up):
            built.step()
        times, terms = [], Counter[Term]()
        for _ in range(self._job.steps_per_visit):
            seconds, parts = self._timed(built)
            times.append(seconds)
            terms.update(parts)
        count = self._job.steps_per_visit
        means = [terms[term] / count for term in TERMS]
        return Visit(
            index=index,
            step_times_s=tuple(self._slowest(times)),
            terms_s=tuple(dict(zip(TERMS, row, strict=True)) for row in self._of_all(means)),
        )

    def _timed(self, built: _Built) -> tuple[float, dict[Term, float]]:
        """One step from a common start: seconds until this rank is done, and where they went."""
        device = self._member.device
        synchronize(device)
        if dist.get_world_size() > 1:
            _barrier(device)
        with watching(device) as watch:
            start = time.perf_counter()
            built.step()
            parts = watch.seconds()
            synchronize(device)
            return time.perf_counter() - start, parts

    def _slowest(self, times: Sequence[float]) -> list[float]:
        found = torch.tensor(times, dtype=torch.float64, device=self._member.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return [float(value) for value in found.tolist()]

    def _of_all(self, values: Sequence[float]) -> list[list[float]]:
        mine = torch.tensor(values, dtype=torch.float64, device=self._member.device)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        return [[float(value) for value in row.tolist()] for row in everyone]

    def _build(self, index: int) -> _Built:
        found = self._built.get(index)
        if found is not None:
            return found
        if not self._keeps:
            self._built.clear()
            gc.collect()
            if self._member.device.type != "cpu":
                torch.accelerator.empty_cache()
        layout = self._job.entries[index].layout
        groups = self._groups.get(index)
        if groups is None:
            groups = ParallelGroups.create(layout, timeout=self._member.timeout)
            self._groups[index] = groups
        built = self._built[index] = _Built.of(
            self._job.plan, layout, groups, self._samples, self._member.device
        )
        return built


@dataclass(slots=True)
class _Built:
    """One layout on this rank, ready to step."""

    train_step: TrainStep
    batches: BatchSource
    device: torch.device
    rate: float
    steps_done: int = 0

    @classmethod
    def of(
        cls,
        plan: Plan,
        layout: Layout,
        groups: ParallelGroups,
        samples: SampleSource,
        device: torch.device,
    ) -> _Built:
        own = build_rank(plan.model, layout, plan.training, groups, device=device)
        step = TrainStep(own, layout, plan.training, groups, schedule_of(layout))
        batches = BatchSource.of(samples, plan.training, layout, groups.coordinates.dp)
        return cls(step, batches, device, learning_rate(plan.training.optimizer, 0, 1))

    def step(self) -> None:
        """One training step on new data. Weights that are no longer finite are timed all the
        same."""
        with during("data"):
            batches = [
                (tokens.to(self.device), labels.to(self.device))
                for tokens, labels in self.batches.micro_batches(self.steps_done)
            ]
        self.train_step.run(batches, self.rate)
        self.steps_done += 1


def _order_of(job: TrialJob) -> list[int]:
    """The layouts of the next round; each round starts with another, so that none always follows
    the same."""
    running = job.running()
    if not running:
        return []
    times = job.round_times_s()
    fewest = min(len(times[index]) for index in running)
    due = [index for index in running if len(times[index]) == fewest]
    start = fewest % len(due)
    return due[start:] + due[:start]


def _barrier(device: torch.device) -> None:
    if device.type == "cpu":
        dist.barrier()
    else:
        dist.barrier(device_ids=[device.index])


def terms_of(job: TrialJob, index: int) -> list[dict[str, float]]:
    """By global rank, the median over a layout's visits of the seconds of each term."""
    visits = [visit.terms_s for visit in job.visits if visit.index == index]
    return [
        {term: statistics.median(visit[rank].get(term, 0.0) for visit in visits) for term in TERMS}
        for rank in range(len(visits[0]))
    ]


def read_visits(folder: Path) -> Iterator[Visit]:
    """Those that rank 0 left; a last line that was cut short is left out."""
    with suppress(FileNotFoundError):
        for line in (folder / VISITS_FILE).read_text(encoding="utf-8").splitlines():
            try:
                yield Visit.model_validate(json.loads(line))
            except ValueError:
                return


def visited_last(folder: Path, rank: int) -> int | None:
    """The layout that a rank was at when it ended; None before the first and after the last."""
    try:
        return int(_visiting_file(folder, rank).read_text())
    except (FileNotFoundError, ValueError):  # a rank may just be writing it
        return None


def _visiting_file(folder: Path, rank: int) -> Path:
    return folder / f"visiting-{rank}"
