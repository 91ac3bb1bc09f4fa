"""A whole step's collectives and what a rank keeps, against the books, to the byte.

    python -m benchmarks.step_ledger                 all cases of `benchmarks.parity`
    python -m benchmarks.step_ledger gpt2/tp2 ...    some of them

Every call that a step makes on a rank is counted at c10d: kind, bytes handed in, and group; and its
FLOPs. The books' side is `cost_models.rank_books`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.parity import MicroBatch, batch, build
from benchmarks.parity_cases import TRAINING, Case, all_cases
from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.cost_models.rank_books import Call, RankBooks
from shardwright.runtime.ledger import Ledger
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.step import TrainStep
from shardwright.specs import Layout, Precision, TrainingSpec
from tests.distributed import run_on_ranks

Kept = tuple[str, int, int, int]
"""A unit: name, bytes of weights, gradients and optimizer state between steps."""


@dataclass(frozen=True, slots=True)
class Job:
    """A case with few micro-batches, in bf16: weights, gradients and masters differ in size."""

    case: Case
    training: TrainingSpec
    layout: Layout

    @classmethod
    def of(cls, case: Case) -> Job:
        """Two micro-batches, or one more than there are pipeline ranks."""
        full = case.layout
        count = 2 if full.pp == 1 else full.pp + 1
        training = TRAINING.model_copy(
            update={
                "precision": Precision.BF16,
                "global_batch": full.dp * full.micro_batch * count,
            }
        )
        return cls(case, training, Layout.of(case.model, training, **case.choices))

    def micro_batches(self, dp_rank: int) -> list[MicroBatch]:
        tokens, labels = (tensor[: self.layout.micro_batch] for tensor in batch(dp_rank))
        return [(tokens, labels)] * self.layout.micro_batches


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one rank did and keeps."""

    calls: Counter[Call]
    kept: list[Kept]
    flops: int


def run_step(job: Job) -> StepRecord:
    """One step on this rank, watched."""
    groups = ParallelGroups.create(job.layout)
    rank = build(job.case.model, job.layout, groups, job.training)
    train = TrainStep(rank, job.layout, job.training, groups, schedule_of(job.layout))
    with Ledger() as ledger:
        train.run(job.micro_batches(groups.coordinates.dp), 1e-3)
    kept = [
        (
            state.unit.name,
            state.unit.weight_bytes,
            state.unit.gradient_bytes,
            sum(b.nbytes for kind, b in state.buffers().items() if kind != "weight"),
        )
        for state in train.optimizer.states
    ]
    calls = Counter((c.kind, c.input_bytes, c.ranks) for c in ledger.collectives)
    return StepRecord(calls, kept, ledger.flops)


def books_record(job: Job, rank: int) -> StepRecord:
    """The books' account of the same step on one rank."""
    books = RankBooks(job.case.model, job.training, job.layout, rank)
    kept = [
        (unit.name, unit.weight_bytes, unit.gradient_bytes, unit.optimizer_bytes)
        for unit in books.kept()
    ]
    return StepRecord(books.calls(), kept, books.flops())


def differences(jobs: Sequence[Job], *, timeout_s: float = 180.0) -> Iterator[str]:
    """One line for each rank of each job whose books are not what it did; none is as it should be.

    Jobs of equal numbers of ranks share a launch.
    """
    for world in sorted({job.layout.world for job in jobs}):
        same = [job for job in jobs if job.layout.world == world]
        ranks = run_on_ranks(world, [partial(run_step, job) for job in same], timeout_s=timeout_s)
        for rank, records in enumerate(ranks):
            for job, found in zip(same, records, strict=True):
                expected = books_record(job, rank)
                if found != expected:
                    yield f"{job.case.id}, rank {rank}: {_difference(found, expected)}"


def _difference(found: StepRecord, expected: StepRecord) -> str:
    unbooked, missing = found.calls - expected.calls, expected.calls - found.calls
    kept = [pair for pair in zip(found.kept, expected.kept, strict=False) if pair[0] != pair[1]]
    return (
        f"not in the books {dict(unbooked)}, not done {dict(missing)}, keeps {kept},"
        f" {found.flops} FLOPs instead of {expected.flops}"
    )


def main(names: Sequence[str]) -> int:
    """Check the named cases, or all; exit code 1 where a rank differs from its books."""
    known = all_cases()
    jobs = [Job.of(known[name]) for name in names or known]
    found = list(differences(jobs, timeout_s=600.0))
    sys.stdout.writelines(f"{line}\n" for line in found)
    ranks = sum(job.layout.world for job in jobs)
    sys.stdout.write(f"{len(jobs)} cases, {ranks} ranks, {len(found)} differ from their books\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
