"""Fast times against an oracle of a few lines, and against the simulator; speed; what is held."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from unittest.mock import patch

import pytest

from shardwright.cost_models.pipeline import fast, segments
from shardwright.cost_models.pipeline.fast import (
    PipelineTimes,
    StageSeconds,
    in_flight,
    pipeline_times,
    simulation_costs,
)
from shardwright.cost_models.pipeline.makespan import simulate
from shardwright.cost_models.pipeline.orders import computation_order, ranks_of_stages
from shardwright.cost_models.pipeline.program import compile_schedule
from shardwright.cost_models.pipeline.schedules import build_schedule, sequential_schedule
from shardwright.specs import Action, ActionKind, InputError

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
I, W = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT  # noqa: E741

VPP = {
    "gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zb-h1": 1, "zb-h2": 1, "zb-v": 2, "dualpipev": 2,
}  # fmt: skip


def draw(
    rng: random.Random, stages: int, least: float, most: float, message: float
) -> StageSeconds:
    def times(count: int, low: float, high: float) -> tuple[float, ...]:
        return tuple(rng.uniform(low, high) for _ in range(count))

    forward_s, input_s, weight_s = (times(stages, least, most) for _ in range(3))
    return StageSeconds(forward_s, input_s, weight_s, times(stages - 1, 0.0, message))


def oracle(
    name: str, pp: int, vpp: int, m: int, seconds: StageSeconds, ratio: float
) -> PipelineTimes:
    """Each rank in its order: a computation starts when the rank is free and its input is there."""
    ranks, last = ranks_of_stages(name, pp, vpp), pp * vpp - 1
    own_s = {F: seconds.forward_s, B: seconds.backward_s,
             I: seconds.backward_input_s, W: seconds.backward_weight_s}  # fmt: skip
    rows = [list(row) for row in computation_order(name, pp, vpp, m)]
    done: dict[tuple[bool, int, int | None], float] = {}
    now_s, busy_s, complete_s = [0.0] * pp, [0.0] * pp, [0.0] * (pp * vpp)

    def input_s(part: Action) -> float | None:
        source = part.stage + (-1 if part.kind is F else 1)
        if part.kind is W or not 0 <= source <= last:
            return 0.0
        end_s = done.get((part.kind is F, source, part.micro_batch))
        is_remote = ranks[source] != ranks[part.stage]
        wire_s = seconds.message_s[min(source, part.stage)] if is_remote else 0.0
        return None if end_s is None else end_s + wire_s

    while any(rows):
        for rank, row in enumerate(rows):
            while row:
                parts = row[0].parts or (row[0],)
                inputs_s = [input_s(part) for part in parts]
                if any(ready_s is None for ready_s in inputs_s):
                    break
                spent_s = sum(own_s[part.kind][part.stage] for part in parts)
                spent_s *= ratio if len(parts) == 2 else 1.0
                now_s[rank] = max(now_s[rank], *(t or 0.0 for t in inputs_s)) + spent_s
                busy_s[rank] += spent_s
                for part in parts:
                    if part.kind is not W:
                        done[part.kind is F, part.stage, part.micro_batch] = now_s[rank]
                    if part.kind in (B, W):
                        complete_s[part.stage] = now_s[rank]
                row.pop(0)
    return PipelineTimes(max(now_s), tuple(now_s), tuple(busy_s), tuple(complete_s))


def check_same(one: PipelineTimes, other: PipelineTimes) -> None:
    assert one.makespan_s == pytest.approx(other.makespan_s, rel=1e-9)
    assert one.end_s == pytest.approx(other.end_s, rel=1e-9)
    assert one.busy_s == pytest.approx(other.busy_s, rel=1e-9)
    assert one.last_backward_s == pytest.approx(other.last_backward_s, rel=1e-9)


@pytest.mark.parametrize("pp", range(1, 9))
@pytest.mark.parametrize("name", VPP)
def test_equals_the_oracle(name: str, pp: int) -> None:
    rng = random.Random(f"{name} {pp}")
    for m in [1, *rng.sample(range(2, 25), 3)]:
        vpp = rng.choice([2, 3, 4]) if name == "interleaved-1f1b" else VPP[name]
        seconds = draw(rng, pp * vpp, 0.2, 1.5, rng.choice([0.0, 0.2, 5.0]))
        ratio = rng.choice([1.0, 0.8])
        times = pipeline_times(
            name, pp=pp, vpp=vpp, num_micro_batches=m, seconds=seconds, overlap_ratio=ratio
        )
        check_same(times, oracle(name, pp, vpp, m, seconds, ratio))


@pytest.mark.parametrize("pp", range(1, 9))
@pytest.mark.parametrize("name", VPP)
def test_equals_the_simulator_where_messages_are_short(name: str, pp: int) -> None:
    """A pair sends two messages to one rank at once: there the simulator's wire is shared."""
    rng = random.Random(f"{name} {pp}")
    for m in rng.sample(range(1, 25), 2):
        vpp = VPP[name]
        seconds = draw(rng, pp * vpp, 0.5, 1.5, 0.0 if name == "dualpipev" else 0.5)
        times = pipeline_times(
            name, pp=pp, vpp=vpp, num_micro_batches=m, seconds=seconds, overlap_ratio=0.9
        )
        schedule = build_schedule(name, pp=pp, vpp=vpp, num_micro_batches=m)
        program = compile_schedule(schedule, receives_ahead=True)
        timeline = simulate(program, simulation_costs(program, seconds, 0.9))
        assert times.makespan_s == pytest.approx(timeline.makespan_s, rel=1e-9)
        assert times.end_s == pytest.approx([ends[-1] for ends in timeline.ends_s], rel=1e-9)
        assert times.busy_s == pytest.approx([rank.busy_s for rank in timeline.ranks], rel=1e-9)


KINDS: dict[str, Callable[[random.Random, int], StageSeconds]] = {
    "even": lambda rng, n: StageSeconds((1.0,) * n, (1.1,) * n, (0.9,) * n, (0.05,) * (n - 1)),
    "uneven": lambda rng, n: draw(rng, n, 0.5, 1.5, 0.1),
    "nearly even": lambda rng, n: draw(rng, n, 0.99, 1.01, 0.1),
    "long messages": lambda rng, n: draw(rng, n, 0.9, 1.1, 4.0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", VPP)
def test_long_steps_are_exact(name: str, kind: str) -> None:
    rng = random.Random(f"{name} {kind}")
    for pp in (1, 2, 3, 8):
        m = rng.randint(80, 160)
        seconds = KINDS[kind](rng, pp * VPP[name])
        times = pipeline_times(
            name, pp=pp, vpp=VPP[name], num_micro_batches=m, seconds=seconds, overlap_ratio=0.9
        )
        check_same(times, oracle(name, pp, VPP[name], m, seconds, 0.9))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "zb-v", "dualpipev", "interleaved-1f1b"])
def test_powers_and_periods_one_by_one_agree(name: str, kind: str) -> None:
    seconds = KINDS[kind](random.Random(f"{name} {kind}"), 4 * VPP[name])
    for m in (40, 41, 48, 160, 333):
        found = []
        for is_power in (False, True):
            with patch.object(fast, "_is_power_cheaper", lambda *_, is_power=is_power: is_power):
                found.append(
                    pipeline_times(name, pp=4, vpp=VPP[name], num_micro_batches=m, seconds=seconds)
                )
        check_same(*found)


def test_periods_are_skipped_once_they_repeat() -> None:
    """Even stages repeat at once: a step 16 times as long must not take 4 times as long."""
    for name, vpp in (("1f1b", 1), ("interleaved-1f1b", 2)):
        seconds = KINDS["even"](random.Random(), 4 * vpp)
        short, long = (best_s(name, 4, vpp, m, seconds) for m in (128, 2048))
        assert long < 4 * short


def best_s(name: str, pp: int, vpp: int, m: int, seconds: StageSeconds) -> float:
    """Seconds of CPU of one price, the order being known."""
    found = []
    for _ in range(15):
        start = time.process_time()
        for _ in range(4):
            pipeline_times(name, pp=pp, vpp=vpp, num_micro_batches=m, seconds=seconds)
        found.append((time.process_time() - start) / 4)
    return min(found)


@pytest.mark.parametrize(
    ("name", "vpp", "m", "limit_s"),
    [
        ("1f1b", 1, 16, 150e-6),
        ("interleaved-1f1b", 8, 16, 1e-3),
        ("1f1b", 1, 512, 1e-3),
        ("zb-h1", 1, 512, 2e-3),
        ("gpipe", 1, 512, 1e-3),
    ],
)
def test_is_fast(name: str, vpp: int, m: int, limit_s: float) -> None:
    """Sixteen ranks with stages of the same layers, but for the first and the last."""
    stages = 16 * vpp
    pass_s = (1.2, *(1.0,) * (stages - 2), 1.3)
    ends = StageSeconds(pass_s, pass_s, pass_s, (0.05,) * (stages - 1))
    assert best_s(name, 16, vpp, m, ends) < limit_s


def test_without_a_pipeline() -> None:
    seconds = StageSeconds((1.0,), (2.0,), (3.0,), ())
    times = pipeline_times(None, pp=1, vpp=1, num_micro_batches=100, seconds=seconds)
    check_same(times, PipelineTimes(600.0, (600.0,), (600.0,), (600.0,)))
    program = compile_schedule(sequential_schedule(3))
    assert simulate(program, simulation_costs(program, seconds)).makespan_s == 18.0


def test_gradients_are_complete_at_the_last_backward_by_hand() -> None:
    """ZB-H1 of 2 ranks and 1 micro-batch: F0 F1 I1 {I0 W0 | W1}, with wires of half a second."""
    seconds = StageSeconds((1.0, 1.0), (1.0, 1.0), (1.0, 2.0), (0.5,))
    times = pipeline_times("zb-h1", pp=2, vpp=1, num_micro_batches=1, seconds=seconds)
    assert times.last_backward_s == pytest.approx((1 + 0.5 + 1 + 1 + 0.5 + 1 + 1, 2.5 + 1 + 2))
    assert times.makespan_s == max(times.end_s) == times.end_s[0]
    assert times.busy_s == (3.0, 4.0)


def test_refusals() -> None:
    seconds = StageSeconds((1.0,) * 4, (1.0,) * 4, (1.0,) * 4, (0.0,) * 3)
    for name, vpp in (("1f1b", 2), ("gpipe", 2), ("zb-v", 1), ("custom", 1)):
        with pytest.raises(InputError):
            pipeline_times(name, pp=2, vpp=vpp, num_micro_batches=4, seconds=seconds)
        with pytest.raises(InputError):
            in_flight(name, pp=2, vpp=vpp, num_micro_batches=4)


def held_at_once(row: list[Action], pp: int, vpp: int) -> set[tuple[int, ...]]:
    """Every count by chunk that the row goes through, one action after the other."""
    held, found = [0] * vpp, set()
    for action in row:
        parts = action.parts or (action,)
        for part in parts:
            held[part.stage // pp] += part.kind is F
        found.add(tuple(held))
        for part in parts:
            held[part.stage // pp] -= part.kind in (B, W)
    return found


@pytest.mark.parametrize("name", VPP)
def test_in_flight_is_the_most_of_the_whole_order(name: str) -> None:
    """Also of steps that are longer by any number of periods, whose order is not walked through."""
    for pp, m in ((1, 3), (2, 5), (3, 40), (4, 6), (4, 96), (4, 99), (5, 123)):
        vpp = VPP[name]
        fast = in_flight(name, pp=pp, vpp=vpp, num_micro_batches=m)
        for rank, row in enumerate(computation_order(name, pp, vpp, m)):
            every = held_at_once(row, pp, vpp)
            assert set(fast[rank]) <= every
            for counts in every:
                assert any(all(a <= b for a, b in zip(counts, f, strict=True)) for f in fast[rank])
            for one in fast[rank]:
                for other in set(fast[rank]) - {one}:
                    assert any(a > b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", [name for name in VPP if name != "gpipe"])
def test_in_flight_saturates(name: str) -> None:
    vpp = VPP[name]
    found = {in_flight(name, pp=4, vpp=vpp, num_micro_batches=m) for m in (16, 64, 256, 2048)}
    assert len(found) == 1


def test_in_flight_by_hand() -> None:
    assert in_flight("1f1b", pp=2, vpp=1, num_micro_batches=4) == (((2,),), ((1,),))
    assert in_flight("gpipe", pp=2, vpp=1, num_micro_batches=4) == (((4,),), ((4,),))
    assert in_flight(None, pp=1, vpp=1, num_micro_batches=4) == (((1,),),)
    assert set(in_flight("zb-v", pp=2, vpp=2, num_micro_batches=8)[0]) == {(4, 0), (3, 1)}


def test_split_steps_are_those_of_the_unsplit_order() -> None:
    """The same price where the order is compiled whole."""
    seconds = draw(random.Random(1), 8, 0.9, 1.1, 0.3)

    def price(name: str) -> PipelineTimes:
        return pipeline_times(name, pp=4, vpp=2, num_micro_batches=144, seconds=seconds)

    for name in ("zb-v", "interleaved-1f1b"):
        split = price(name)
        segments.flat_order.cache_clear()
        with patch.object(segments, "split_of", lambda *_: None):
            check_same(split, price(name))
        segments.flat_order.cache_clear()
