"""A whole step's collectives and what a rank keeps, against the books, to the byte.

    python -m benchmarks.step_ledger                 all cases of `benchmarks.parity`
    python -m benchmarks.step_ledger gpt2/tp2 ...    some of them

Every call that a step makes on a rank is counted at c10d: kind, bytes handed in, and group. The
books' side puts together the blocks' collectives of all micro-batches, the schedule's sends, the
units' gathers and reductions, and the step's own two sums.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.parity import MicroBatch, batch, build
from benchmarks.parity_cases import TRAINING, Case, all_cases
from shardwright.cost_models.blocks.operations import Collective, Operation
from shardwright.cost_models.blocks.stage import UnitBooks, stage_books
from shardwright.cost_models.compute import ComputeModel
from shardwright.cost_models.groups import GroupName
from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.cost_models.shards import UnitShards
from shardwright.cost_models.units import UnitPricer
from shardwright.runtime.ledger import Ledger
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.step import TrainStep
from shardwright.specs import ActionKind, Layout, Precision, SoftwareSpec, TrainingSpec
from tests.cost_models.profiles import profile
from tests.distributed import run_on_ranks

Call = tuple[str, int, tuple[int, ...]]
"""Kind, bytes of the tensor handed in, global ranks."""
Kept = tuple[str, int, int, int]
"""A unit: name, bytes of weights, gradients and optimizer state between steps."""

SOFTWARE = SoftwareSpec()


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


def run_step(job: Job) -> StepRecord:
    """One step on this rank, watched."""
    groups = ParallelGroups.create(job.layout)
    stage = build(job.case.model, job.layout, groups, job.training)
    train = TrainStep(stage, job.layout, job.training, groups, schedule_of(job.layout))
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
    return StepRecord(calls, kept)


class Books:
    """The books' account of the same step on one rank."""

    def __init__(self, job: Job, rank: int) -> None:
        model, training, layout = job.case.model, job.training, job.layout
        self.layout = layout
        self.at = layout.world_size.coordinates(rank)
        self.groups = groups_of(layout, rank)
        self.stage = stage_books(model, training, SOFTWARE, layout, self.at.pp, self.at.tp)
        pricer = UnitPricer(model, training, ComputeModel(profile(), SOFTWARE), SOFTWARE)
        self.units: list[tuple[UnitBooks, UnitShards]] = [
            (unit, pricer.shards(self.layout, unit)) for unit in self.stage.units
        ]

    def record(self) -> StepRecord:
        kept = [
            (unit.name, shards.weight_bytes, shards.gradient_bytes, shards.optimizer_bytes)
            for unit, shards in self.units
            if unit.num_parameters
        ]
        calls = Counter(call for call in self._calls() if len(call[2]) > 1)
        return StepRecord(calls, kept)

    def _calls(self) -> Iterator[Call]:
        for unit, shards in self.units:
            for _ in range(self.layout.micro_batches):
                yield from self._placed(_with_group(unit.forward))
                yield from self._placed(_with_group(unit.backward))
                yield from self._placed([*shards.gathering(), *shards.gathering()])
                yield from self._placed(shards.scattering())
            yield from self._placed(shards.reduction())
            yield from self._placed(shards.publishing())
            if unit.name == "tied_embedding":
                yield from self._placed(shards.tied_sum())
        yield from self._sends()
        yield "all_reduce", 8, self.groups["dp"]
        yield "all_reduce", 16, self.groups["world"]

    def _placed(self, calls: Iterable[tuple[Collective, GroupName]]) -> Iterator[Call]:
        for call, group in calls:
            yield call.kind, call.input_bytes, self.groups[group]

    def _sends(self) -> Iterator[Call]:
        sizes = {
            ActionKind.SEND_FORWARD: self.stage.message_bytes,
            ActionKind.SEND_BACKWARD: self.stage.input_bytes,
        }
        for action in schedule_of(self.layout).ranks[self.at.pp]:
            if action.kind in sizes:
                yield "send_recv", sizes[action.kind], self.groups["pp"]


def _with_group(operations: Iterable[Operation]) -> Iterator[tuple[Collective, GroupName]]:
    for operation in operations:
        if isinstance(operation, Collective):
            assert operation.axis == "tp"
            yield operation, "tp"


def groups_of(layout: Layout, rank: int) -> dict[str, tuple[int, ...]]:
    """The rank's groups by name; of one rank where there is none."""
    world, degree = layout.world_size, layout.zero_shard_degree
    own = {
        axis: next(tuple(ranks) for ranks in world.groups(axis) if rank in ranks)
        for axis in ("tp", "dp", "pp")
    }
    place = own["dp"].index(rank)
    first = place - place % degree
    pipeline = own["pp"]
    ends = (pipeline[0], pipeline[-1])
    return {
        **own,
        "world": tuple(range(world.world)),
        "shard": own["dp"][first : first + degree],
        "replica": own["dp"][place % degree :: degree],
        "embedding": ends if rank in ends and len(pipeline) > 1 else (rank,),
    }


def differences(jobs: Sequence[Job], *, timeout_s: float = 60.0) -> Iterator[str]:
    """One line for each rank of each job whose books are not what it did; none is as it should be.

    Jobs of equal numbers of ranks share a launch.
    """
    for world in sorted({job.layout.world for job in jobs}):
        same = [job for job in jobs if job.layout.world == world]
        ranks = run_on_ranks(world, [partial(run_step, job) for job in same], timeout_s=timeout_s)
        for rank, records in enumerate(ranks):
            for job, found in zip(same, records, strict=True):
                expected = Books(job, rank).record()
                if found != expected:
                    yield f"{job.case.id}, rank {rank}: {_difference(found, expected)}"


def _difference(found: StepRecord, expected: StepRecord) -> str:
    unbooked, missing = found.calls - expected.calls, expected.calls - found.calls
    kept = [pair for pair in zip(found.kept, expected.kept, strict=False) if pair[0] != pair[1]]
    return f"not in the books {dict(unbooked)}, not done {dict(missing)}, keeps {kept}"


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
