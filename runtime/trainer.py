"""The training loop of one rank: build, audit, train, save, and compare with the prediction."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.hardware_profiles.device import synchronize
from shardwright.runtime.audit import audit
from shardwright.runtime.checkpoint import CheckpointStore, RunFacts
from shardwright.runtime.data.batches import BatchSource
from shardwright.runtime.data.samples import SampleSource
from shardwright.runtime.job import Job
from shardwright.runtime.memory import MemoryMeter
from shardwright.runtime.metrics import MetricsFile, Reporter, StepRecord
from shardwright.runtime.models import build_rank
from shardwright.runtime.models.huggingface import HuggingFaceFolder, load_hugging_face_
from shardwright.runtime.optimizer import learning_rate
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.pieces import pieces_of
from shardwright.runtime.preflight import check_job, look_around, open_data
from shardwright.runtime.ranks import Membership, explained, membership, together
from shardwright.runtime.rendezvous import Rendezvous
from shardwright.runtime.step import StepResult, TrainStep
from shardwright.runtime.summary import RunSummary, summarize
from shardwright.specs import ClusterSpec, InputError, RunError

logger = logging.getLogger(__name__)


def train(job: Job, rendezvous: Rendezvous, *, folder: Path | None = None) -> RunSummary | None:
    """Run the job as one rank of a launch.

    Args:
        folder: where metrics go when the job keeps nothing.

    Returns:
        The summary on rank 0, None on every other.

    Raises:
        InputError: what `check_job` and `open_data` refuse, on every rank alike.
        RunError: a mismatch of the built model, a loss that is not finite, a full disk, a lost
            peer, or no memory.
    """
    here = look_around(job.plan.layout.world, rendezvous)
    with (
        membership(rendezvous, job.timeout_s, pins=True) as member,
        explained(member.rank, "while the run was prepared"),
    ):
        samples = _prepare(job, rendezvous, here)
        return Trainer(job, member, samples, job.metrics_path(folder)).run()


def _prepare(job: Job, rendezvous: Rendezvous, here: ClusterSpec | InputError) -> SampleSource:
    """All ranks refuse, or all have the samples open."""
    opened: list[SampleSource] = []

    def check_and_open() -> None:
        check_job(job, rendezvous, here)
        opened.append(open_data(job, progress=rendezvous.rank == 0))

    together(check_and_open)
    return opened[0]


class Trainer:
    """What one rank holds during a run."""

    def __init__(
        self, job: Job, member: Membership, samples: SampleSource, metrics_path: Path | None
    ) -> None:
        plan = job.plan
        self.job = job
        self.member = member
        self.facts = RunFacts.of(plan, samples.fingerprint)
        self.memory = MemoryMeter(member.device)
        self.groups = ParallelGroups.create(plan.layout, timeout=member.timeout)
        self.step = self._build()
        self.batches = BatchSource.of(
            samples, plan.training, plan.layout, self.groups.coordinates.dp
        )
        self.store = None
        if job.save_path is not None:
            self.store = CheckpointStore(job.save_path, keep=job.keep)
        self.metrics_path = metrics_path
        self.records: list[StepRecord] = []
        self.steps_done = self.steps_saved = 0

    def _build(self) -> TrainStep:
        plan, groups = self.job.plan, self.groups
        with self.memory.building():
            model = build_rank(
                plan.model, plan.layout, plan.training, groups, device=self.member.device
            )
        audit(plan, model, groups, self.facts)
        if self.job.init_from is not None:
            folder = HuggingFaceFolder(Path(self.job.init_from))
            together(lambda: load_hugging_face_(model.parameters(), plan.model, folder))
        schedule = plan.schedule or schedule_of(plan.layout)
        with self.memory.building():
            return TrainStep(model, plan.layout, plan.training, groups, schedule)

    def run(self) -> RunSummary | None:
        """Train up to the job's last step, or until a signal asks to stop."""
        if self.job.resume:
            self._resume()
        first_step = self.steps_done + 1
        with ExitStack() as stack:
            metrics = self._open_metrics(first_step)
            if metrics is not None:
                stack.callback(metrics.close)
            reporter = stack.enter_context(
                Reporter(
                    first_step=first_step,
                    last_step=self.job.steps,
                    log_every=self.job.log_every,
                    speaks=self.member.rank == 0,
                )
            )
            asked = stack.enter_context(_signals_as_wishes())
            for record in self._steps():
                if metrics is not None:
                    metrics.append(record)
                reporter.done(record)
                if self._ends_here(record.step, asked):
                    break
        self._save_unless_saved()
        return self._summarize(first_step)

    def _resume(self) -> None:
        assert self.store is not None
        step = self.store.read_manifest().step
        self.store.load(step, pieces_of(self.step.optimizer.state_entries(owned_only=False)))
        self.step.restored(step)
        self.steps_done = self.steps_saved = step
        self._say("continuing after step %d of %s", step, self.job.save_dir)

    def _open_metrics(self, first_step: int) -> MetricsFile | None:
        if self.member.rank > 0 or self.metrics_path is None:
            return None
        return MetricsFile(self.metrics_path, first_step=first_step)

    def _steps(self) -> Iterator[StepRecord]:
        """Do the remaining steps one by one; each is saved, where it is due, before the next."""
        for step in range(self.steps_done + 1, self.job.steps + 1):
            with explained(self.member.rank, f"in step {step}"):
                record = self._do_step(step)
            self.records.append(record)
            self.steps_done = step
            yield record
            every = self.job.save_every
            if every is not None and step % every == 0:
                self._save_unless_saved()

    def _do_step(self, step: int) -> StepRecord:
        training = self.job.plan.training
        rate = learning_rate(training.optimizer, step - 1, self.job.steps)
        is_due = len(self.records) == 1 or step == self.job.steps == 1
        synchronize(self.member.device)
        start = time.perf_counter()
        with self.memory.measuring(is_due=is_due):
            batches = [
                (tokens.to(self.member.device), labels.to(self.member.device))
                for tokens, labels in self.batches.micro_batches(step - 1)
            ]
            result = self.step.run(batches, rate)
        synchronize(self.member.device)
        duration_s = time.perf_counter() - start
        self._require_finite(step, result)
        return StepRecord(
            step=step,
            loss=result.loss,
            grad_norm=result.grad_norm,
            learning_rate=rate,
            step_time_s=duration_s,
            tokens_per_s=training.tokens_per_step / duration_s,
        )

    def _require_finite(self, step: int, result: StepResult) -> None:
        if result.is_finite:
            return
        error = RunError(
            f"step {step} gave loss {result.loss} and gradient norm {result.grad_norm}; no weight"
            " was changed",
            fix="lower the learning rate, or look at the data of that step;"
            f" {self.job.how_to_continue()}",
        )
        error.on_every_rank = True
        raise error

    def _ends_here(self, step: int, asked: list[int]) -> bool:
        if asked:
            self.member.ask_to_stop(after_step=step + 1)
        return self.member.must_stop(step)

    def _save_unless_saved(self) -> None:
        if self.store is None or self.steps_saved == self.steps_done:
            return
        with explained(
            self.member.rank, f"while the checkpoint of step {self.steps_done} was made"
        ):
            self.store.save(
                self.steps_done,
                pieces_of(self.step.optimizer.state_entries(owned_only=True)),
                self.facts,
                self.job.plan,
            )
        self.steps_saved = self.steps_done
        self._say("saved %s", self.store.path(self.steps_done))

    def _summarize(self, first_step: int) -> RunSummary | None:
        memory = together(
            lambda: self.memory.result(self.job.plan, self.member.rank, self.groups.coordinates.pp)
        )
        if self.member.rank > 0:
            return None
        checkpoint = None if self.store is None else str(self.store.path(self.steps_done))
        metrics = self.metrics_path if self.job.save_dir is not None else None
        return summarize(
            self.job.plan,
            self.records,
            memory,
            first_step=first_step,
            stopped_early=self.steps_done < self.job.steps,
            checkpoint=checkpoint,
            metrics=None if metrics is None else str(metrics),
        )

    def _say(self, message: str, *values: object) -> None:
        if self.member.rank == 0:
            logger.info(message, *values)


@contextmanager
def _signals_as_wishes() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT instead of dying of them; a second one has its usual effect."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    asked: list[int] = []
    before = {number: signal.getsignal(number) for number in numbers}

    def note(number: int, frame: object) -> None:
        asked.append(number)
        signal.signal(number, before[signal.Signals(number)])

    try:
        for number in numbers:
            signal.signal(number, note)
        yield asked
    finally:
        for number in numbers:
            signal.signal(number, before[number])
