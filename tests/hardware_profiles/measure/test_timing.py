"""Timing calls on fresh operands."""

from __future__ import annotations

import time

import pytest
import torch

from shardwright.hardware_profiles.measure.timing import Arena, Call, Timer, summarise

CPU = torch.device("cpu")


def timer(**changes: float) -> Timer:
    settings = {"point_s": 0.0, "min_samples": 5, "kept_bytes": 2**20} | changes
    return Timer(CPU, **settings)  # type: ignore[arg-type]


class TestArena:
    def test_tensors_lie_apart_until_the_arena_is_full(self) -> None:
        arena = Arena(4096, torch.float32, CPU)
        tensors = [arena.take(10, 10) for _ in range(9)]
        starts = [t.data_ptr() - tensors[0].data_ptr() for t in tensors]
        assert starts == [448 * i for i in range(9)]  # 400 bytes, aligned to 64
        assert arena.take(10, 10).data_ptr() == tensors[0].data_ptr()

    def test_a_tensor_larger_than_the_arena_makes_it_grow(self) -> None:
        arena = Arena(64, torch.float32, CPU)
        assert arena.take(100, 100).shape == (100, 100)

    def test_writing_to_one_tensor_does_not_invalidate_what_autograd_saved_of_another(self) -> None:
        arena = Arena(4096, torch.float32, CPU)
        x, other = arena.take(4).requires_grad_(), arena.take(4)
        y = (x * x).sum()
        other.add_(1)
        (gradient,) = torch.autograd.grad(y, x)
        assert torch.equal(gradient, 2 * x.detach())

    def test_numbers_are_ordinary(self) -> None:
        numbers = Arena(2**16, torch.bfloat16, CPU).take(2**15).float()
        assert numbers.isfinite().all()
        assert 0.2 < float(numbers.std()) < 0.4


class TestTimer:
    def test_a_call_that_sleeps_takes_as_long_as_it_sleeps(self) -> None:
        slept_s: list[float] = []

        def sleep() -> None:
            """On a busy machine for longer than asked."""
            start_s = time.perf_counter()
            time.sleep(0.01)
            slept_s.append(time.perf_counter() - start_s)

        point = timer().point(7, lambda: Call(sleep), 0)
        assert point.x == 7
        assert point.n == 5
        assert 0.01 <= point.median_s <= 1.1 * max(slept_s)

    def test_something_else_runs_before_each_short_call_and_is_not_timed(self) -> None:
        runs: list[str] = []

        def between() -> None:
            runs.append("between")
            time.sleep(0.01)

        timed = Timer(CPU, 0.0, 3, 2**20, between=between)
        assert timed.point(1, lambda: Call(lambda: runs.append("timed")), 0).median_s < 0.001
        assert runs == ["timed"] + ["between", "timed"] * 3
        runs.clear()
        timed.point(1, lambda: Call(lambda: time.sleep(0.003)), 0)
        assert runs == []

    def test_more_samples_while_there_is_time_and_no_more_than_the_most(self) -> None:
        assert timer(point_s=10.0, max_samples=20).point(1, lambda: Call(lambda: None), 0).n == 20

    def test_making_operands_is_not_timed(self) -> None:
        def make_call() -> Call:
            time.sleep(0.01)
            return Call(lambda: None)

        assert timer().point(1, make_call, 0).median_s < 0.001

    def test_results_are_kept_apart_up_to_the_given_bytes(self) -> None:
        places = []

        def run() -> torch.Tensor:
            result = torch.empty(2**16)
            places.append(result.data_ptr())
            return result

        timer(kept_bytes=4 * 2**18).point(1, lambda: Call(run), 2**18)
        assert len(set(places[:4])) == 4


def test_summarise_is_robust_against_one_outlier() -> None:
    point = summarise(3.0, [1.0, 1.1, 1.2, 1.3, 100.0])
    assert point.median_s == 1.2
    assert point.spread_s == pytest.approx(0.2)
    assert point.n == 5
