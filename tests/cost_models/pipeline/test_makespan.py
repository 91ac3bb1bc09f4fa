"""The simulator against an exact oracle on fractions, against closed forms, and its bounds."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from fractions import Fraction

import pytest

from shardwright.cost_models.pipeline.makespan import (
    PipelineCosts,
    Seconds,
    SharedCores,
    Timeline,
    simulate,
)
from shardwright.cost_models.pipeline.program import Program, Work, compile_schedule
from shardwright.cost_models.pipeline.schedules import build_schedule, sequential_schedule
from shardwright.specs import Action, ActionKind, Schedule

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
SEND_F, SEND_B = ActionKind.SEND_FORWARD, ActionKind.SEND_BACKWARD
TRANSFERS = (SEND_F, SEND_B, ActionKind.RECV_FORWARD, ActionKind.RECV_BACKWARD)


def message(action: Action) -> tuple[int, ActionKind, int | None]:
    """The message that a send or receive takes part in, by its sender."""
    if action.kind is ActionKind.RECV_FORWARD:
        return action.stage - 1, SEND_F, action.micro_batch
    if action.kind is ActionKind.RECV_BACKWARD:
        return action.stage + 1, SEND_B, action.micro_batch
    return action.stage, action.kind, action.micro_batch


class Oracle:
    """Exact and naive: the rules of the simulator's docstrings on fractions, stated once more.

    One stage per rank. At each moment it looks at every rank and every message anew.
    """

    def __init__(self, schedule: Schedule, costs: PipelineCosts, sends_block: bool) -> None:
        self.rows, self.costs, self.sends_block = schedule.ranks, costs, sends_block
        self.now = Fraction(0)
        self.at = [0] * len(self.rows)
        self.left: dict[int, Fraction] = {}
        self.posted: dict[tuple[int, ActionKind, int | None], set[int]] = {}
        self.arrival: dict[tuple[int, ActionKind, int | None], Fraction] = {}

    def batch(self, rank: int) -> list[Action]:
        rest = self.rows[rank][self.at[rank] :]
        length = next((i for i, a in enumerate(rest) if a.kind not in TRANSFERS), len(rest))
        return list(rest[:length])

    def settle(self) -> None:
        """Everything that happens at this moment."""
        while any(self.settle_rank(rank) for rank in range(len(self.rows))):
            pass

    def settle_rank(self, rank: int) -> bool:
        if self.at[rank] == len(self.rows[rank]):
            return False
        action = self.rows[rank][self.at[rank]]
        if action.kind not in TRANSFERS:
            if rank not in self.left:
                self.left[rank] = Fraction(1)
            if self.left[rank] > 0:
                return False
            del self.left[rank]
            self.at[rank] += 1
            return True
        batch = self.batch(rank)
        arrivals_before = len(self.arrival)
        for one in batch:
            ends = self.posted.setdefault(message(one), set())
            ends.add(rank)
            if len(ends) == 2 and message(one) not in self.arrival:
                stage, kind, _ = message(one)
                same_wire = [t for (s, k, _), t in self.arrival.items() if (s, k) == (stage, kind)]
                seconds = Fraction(self.costs.transfer_s[stage, kind])
                self.arrival[message(one)] = max([self.now, *same_wire]) + seconds
        awaited = [a for a in batch if self.sends_block or a.kind not in (SEND_F, SEND_B)]
        if all(self.arrival.get(message(a), self.now + 1) <= self.now for a in awaited):
            self.at[rank] += len(batch)
            return True
        return len(self.arrival) > arrivals_before  # a peer may now go on

    def rate(self, rank: int) -> Fraction:
        action = self.rows[rank][self.at[rank]]
        seconds = self.costs.work_s[action.stage, action.kind]
        shared = self.costs.shared
        level = 0
        if shared is not None:
            totals = [
                sum(count for other, count in node if other in self.left)
                for node in shared.nodes
                if any(other == rank for other, _ in node)
            ]
            level = shared.levels.index(max(totals))
        return 1 / Fraction(seconds[level])

    def run(self) -> Fraction:
        self.settle()
        while any(at < len(row) for at, row in zip(self.at, self.rows, strict=True)):
            steps = [self.left[rank] / self.rate(rank) for rank in self.left]
            steps += [t - self.now for t in self.arrival.values() if t > self.now]
            step = min(steps)
            self.left = {r: left - step * self.rate(r) for r, left in self.left.items()}
            self.now += step
            self.settle()
        return self.now


def draw_costs(rng: random.Random, pp: int, shared: SharedCores | None) -> PipelineCosts:
    levels = len(shared.levels) if shared else 1
    work_s: dict[Work, Seconds] = {}
    for stage in range(pp):
        for kind in (F, B):
            alone = Fraction(rng.randint(1, 16), 4)
            slowdowns = sorted(Fraction(rng.randint(4, 16), 4) for _ in range(levels))
            work_s[stage, kind] = tuple(float(alone * slowdown) for slowdown in slowdowns)
    transfer_s = {(s, kind): rng.randint(0, 4) / 8 for s in range(pp) for kind in (SEND_F, SEND_B)}
    return PipelineCosts(work_s, transfer_s, shared)


def even_costs(
    pp: int, forward_s: float, backward_s: float, transfer_s: float = 0.0
) -> PipelineCosts:
    work_s: Mapping[Work, Seconds] = {
        (stage, kind): (seconds,)
        for stage in range(pp)
        for kind, seconds in ((F, forward_s), (B, backward_s))
    }
    return PipelineCosts(work_s, {(s, k): transfer_s for s in range(pp) for k in (SEND_F, SEND_B)})


def check_books(timeline: Timeline, program: Program) -> None:
    """Every rank's seconds add up to the makespan, and its actions follow one another."""
    for rank, books in enumerate(timeline.ranks):
        total_s = books.busy_s + books.transfer_s + books.idle_s
        assert total_s == pytest.approx(timeline.makespan_s, rel=1e-9)
        spans = timeline.spans(rank)
        assert len(spans) == sum(len(item.actions) for item in program.items[rank])
        assert all(span.start_s <= span.end_s for span in spans)


@pytest.mark.parametrize("sends_block", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_equals_the_oracle(seed: int, sends_block: bool) -> None:
    rng = random.Random(seed)
    pp, m = rng.randint(1, 5), rng.randint(1, 6)
    shared = rng.choice([
        None,
        SharedCores.of(pp=pp, ranks_per_stage=rng.randint(1, 3), ranks_per_node=rng.randint(1, 6)),
    ])  # fmt: skip
    schedule = build_schedule(rng.choice(["gpipe", "1f1b"]), pp=pp, num_micro_batches=m)
    costs = draw_costs(rng, pp, shared)
    program = compile_schedule(schedule, sends_block=sends_block)
    timeline = simulate(program, costs)
    oracle_s = Oracle(schedule, costs, sends_block).run()
    assert timeline.makespan_s == pytest.approx(float(oracle_s), rel=1e-9)
    check_books(timeline, program)


@pytest.mark.parametrize("seed", range(20))
def test_sharing_that_costs_nothing_equals_the_longest_path(seed: int) -> None:
    rng = random.Random(seed)
    pp, m = rng.randint(2, 6), rng.randint(1, 8)
    program = compile_schedule(build_schedule("1f1b", pp=pp, num_micro_batches=m))
    alone = draw_costs(rng, pp, None)
    shared = SharedCores.of(pp=pp, ranks_per_stage=1, ranks_per_node=pp)
    same = {work: seconds * len(shared.levels) for work, seconds in alone.work_s.items()}
    one = simulate(program, alone)
    other = simulate(program, PipelineCosts(same, alone.transfer_s, shared))
    assert one.makespan_s == pytest.approx(other.makespan_s, rel=1e-9)
    for a, b in zip(one.ends_s, other.ends_s, strict=True):
        assert a == pytest.approx(b, rel=1e-9)
    for a_rank, b_rank in zip(one.ranks, other.ranks, strict=True):
        assert a_rank.transfer_s == pytest.approx(b_rank.transfer_s, abs=1e-9)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("pp", "m"), [(1, 4), (2, 2), (4, 8), (5, 3)])
def test_even_stages_meet_the_closed_form(name: str, pp: int, m: int) -> None:
    program = compile_schedule(build_schedule(name, pp=pp, num_micro_batches=m))
    timeline = simulate(program, even_costs(pp, 1.0, 2.0))
    assert timeline.makespan_s == pytest.approx((pp - 1 + m) * 3.0)
    assert [rank.idle_s for rank in timeline.ranks] == pytest.approx([(pp - 1) * 3.0] * pp)


def test_one_micro_batch_crosses_every_wire_once_each_way() -> None:
    program = compile_schedule(build_schedule("1f1b", pp=4, num_micro_batches=1))
    timeline = simulate(program, even_costs(4, 1.0, 2.0, transfer_s=0.5))
    assert timeline.makespan_s == pytest.approx(4 * 3.0 + 6 * 0.5)
    assert timeline.ranks[0].transfer_s == pytest.approx(0.5)


def test_a_receive_that_was_posted_ahead_hides_the_wire() -> None:
    """By hand: rank 1's second input crosses while it computes on its first.

    Forward messages take 1 s. F0 of rank 0 ends at 1 s, F1 at 2 s; rank 1 runs F0 from 2 to 4 s and
    F1 at once, since it came at 3 s. Where its receive is posted only at 4 s, it comes at 5 s.
    """
    schedule = build_schedule("gpipe", pp=2, num_micro_batches=2)
    work_s: dict[Work, Seconds] = {(0, F): (1.0,), (1, F): (2.0,), (0, B): (1.0,), (1, B): (1.0,)}
    costs = PipelineCosts(work_s, {(0, SEND_F): 1.0, (1, SEND_B): 0.0})
    ahead = compile_schedule(schedule, receives_ahead=True)
    assert simulate(ahead, costs).makespan_s == pytest.approx(6.0 + 2.0 + 1.0)
    assert simulate(compile_schedule(schedule), costs).makespan_s == pytest.approx(7.0 + 3.0)
    never_slower = SharedCores.of(pp=2, ranks_per_stage=1, ranks_per_node=2)
    alike = {work: seconds * 2 for work, seconds in work_s.items()}
    shared = PipelineCosts(alike, costs.transfer_s, never_slower)
    assert simulate(ahead, shared).makespan_s == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("name", "vpp"), [("interleaved-1f1b", 2), ("zb-h2", 1), ("zb-v", 2), ("dualpipev", 2)]
)
@pytest.mark.parametrize("ranks_per_node", [1, 3])
def test_chunks_and_parts_add_up(name: str, vpp: int, ranks_per_node: int) -> None:
    program = compile_schedule(build_schedule(name, pp=3, vpp=vpp, num_micro_batches=7))
    shared = SharedCores.of(pp=3, ranks_per_stage=1, ranks_per_node=ranks_per_node)
    work_s = {work: (1.0 + work[0] / 8,) * len(shared.levels) for work in program.works}
    costs = PipelineCosts(work_s, dict.fromkeys(program.sends, 0.125), shared)
    timeline = simulate(program, costs)
    check_books(timeline, program)
    for rank, row in enumerate(program.items):
        works = [work_s[program.works[item.work]][0] for item in row if item.work >= 0]
        assert timeline.ranks[rank].busy_s == pytest.approx(sum(works))


def test_two_ranks_on_one_core_take_as_long_as_one_after_the_other() -> None:
    shared = SharedCores.of(pp=2, ranks_per_stage=1, ranks_per_node=2)
    work_s = {(stage, kind): (1.0, 2.0) for stage in range(2) for kind in (F, B)}
    transfer_s = {(s, k): 0.0 for s in range(2) for k in (SEND_F, SEND_B)}
    program = compile_schedule(build_schedule("1f1b", pp=2, num_micro_batches=4))
    timeline = simulate(program, PipelineCosts(work_s, transfer_s, shared))
    assert timeline.makespan_s == pytest.approx(2 * 4 * 2 * 1.0)


@pytest.mark.parametrize("seed", range(30))
def test_never_below_the_admissible_bounds(seed: int) -> None:
    rng = random.Random(seed)
    pp, m = rng.randint(1, 6), rng.randint(1, 9)
    shared = rng.choice([None, SharedCores.of(pp=pp, ranks_per_stage=2, ranks_per_node=4)])
    costs = draw_costs(rng, pp, shared)
    schedule = build_schedule(rng.choice(["gpipe", "1f1b"]), pp=pp, num_micro_batches=m)
    makespan_s = simulate(compile_schedule(schedule), costs).makespan_s
    least_s = [min(costs.work_s[s, F]) + min(costs.work_s[s, B]) for s in range(pp)]
    for stage in range(pp):
        assert makespan_s >= (sum(least_s[:stage]) + m * least_s[stage]) * (1 - 1e-9)
    assert makespan_s >= sum(least_s) * (1 - 1e-9)


def test_nodes_and_levels() -> None:
    assert SharedCores.of(pp=4, ranks_per_stage=2, ranks_per_node=8).levels == (2, 4, 6, 8)
    assert not SharedCores.of(pp=4, ranks_per_stage=8, ranks_per_node=4).is_coupled
    uneven = SharedCores.of(pp=3, ranks_per_stage=2, ranks_per_node=3)
    assert uneven.nodes == (((0, 2), (1, 1)), ((1, 1), (2, 2)))
    assert uneven.levels == (1, 2, 3)
    levels = uneven.level_indices([True, True, False])
    assert [uneven.levels[level] for level in levels[:2]] == [3, 3]


def test_without_a_pipeline_there_are_no_transfers() -> None:
    program = compile_schedule(sequential_schedule(3))
    assert program.transfers == ()
    assert simulate(program, even_costs(1, 1.0, 2.0)).makespan_s == pytest.approx(9.0)


def test_is_fast_without_sharing() -> None:
    program = compile_schedule(build_schedule("1f1b", pp=8, num_micro_batches=64))
    costs = even_costs(8, 1.0, 2.0, transfer_s=0.01)
    seconds = []
    for _ in range(9):
        start = time.process_time()
        simulate(program, costs)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 3e-3
