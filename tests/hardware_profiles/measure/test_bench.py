"""What a rank measures with, and what it reports of it."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from shardwright.hardware_profiles.measure.bench import TORCH_DTYPES, Bench
from shardwright.hardware_profiles.measure.operation import TimedOperation
from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.measure.timing import Arena, Call
from shardwright.hardware_profiles.profile import Curve, Parameter, Point
from shardwright.specs.training import DTYPE_BYTES, DType
from tests.hardware_profiles.measure import stub_operations
from tests.hardware_profiles.measure.stub_operations import tiny_plan

CPU = torch.device("cpu")
PARAMETER = Parameter(name="used", value=3.0, unit="B", kind="measured", fitted_from="a test")


class Listener:
    """The other end of a rank's pipe."""

    def __init__(self, rank: int = 0, **changes: object) -> None:
        self._receiving, self._sending = os.pipe()
        self._heard = bytearray()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        self.bench = Bench(rank, Party.local(2), CPU, tiny_plan(**changes), self._sending)

    def messages(self) -> list[dict[str, object]]:
        """All of them; ends the conversation."""
        os.close(self._sending)
        self._thread.join()
        os.close(self._receiving)
        return [json.loads(line) for line in self._heard.splitlines()]

    def _listen(self) -> None:
        while chunk := os.read(self._receiving, 4096):
            self._heard += chunk


def test_every_dtype_has_an_arena_of_its_own_that_is_made_once() -> None:
    bench = Bench(0, Party.local(1), CPU, tiny_plan())
    for dtype, in_torch in TORCH_DTYPES.items():
        arena = bench.arena(dtype)
        assert arena.take(2).dtype == in_torch
        assert arena.element_bytes == DTYPE_BYTES[dtype]
        assert bench.arena(dtype) is arena


class TestMessages:
    def test_curves_arrive_as_they_were_sent_however_long(self) -> None:
        points = tuple(Point(float(x), x / 7, 0.1, 3) for x in range(1, 5000))
        curve = Curve(quantity="bytes", op="elementwise", dtype="fp32", points=points)
        listener = Listener()
        listener.bench.send_curve(curve)
        listener.bench.send_parameter(PARAMETER)
        sent, parameter = listener.messages()
        assert Curve.model_validate(sent["curve"]) == curve
        assert Parameter.model_validate(parameter["parameter"]) == PARAMETER

    def test_only_the_first_rank_speaks(self) -> None:
        listener = Listener(rank=1)
        listener.bench.send_parameter(PARAMETER)
        listener.bench.begin("something", 0.0, 1.0)
        assert not listener.bench.leads
        assert listener.messages() == []

    def test_where_nobody_listens_nothing_is_sent(self) -> None:
        bench = Bench(0, Party.local(1), CPU, tiny_plan(), messages_fd=None)
        bench.send_parameter(PARAMETER)
        bench.report_progress()
        assert bench.leads


class TestProgress:
    def test_a_phase_that_takes_too_long_stays_within_its_share(self) -> None:
        listener = Listener(budget_s=1e-9)
        listener.bench.begin("slowly", 0.25, 0.5)
        listener.bench.report_progress()
        assert listener.messages() == [
            {"progress": "slowly", "done": 0.25},
            {"progress": "slowly", "done": 0.75},
        ]

    def test_progress_goes_with_the_time_planned(self) -> None:
        listener = Listener(budget_s=1e9)
        listener.bench.begin("quickly", 0.25, 0.5)
        listener.bench.report_progress()
        done = listener.messages()[-1]["done"]
        assert done == pytest.approx(0.25, abs=1e-6)

    def test_it_is_reported_now_and_then_only(self) -> None:
        listener = Listener()
        listener.bench.begin("measuring", 0.0, 1.0)
        for _ in range(50):
            listener.bench.report_progress()
        assert len(listener.messages()) == 2

    def test_each_point_that_is_timed_reports(self) -> None:
        listener = Listener()
        listener.bench.begin("timing", 0.0, 1.0)
        point = listener.bench.timer(0.0).point(5, lambda: Call(lambda: None), 0)
        assert (point.x, point.n) == (5, listener.bench.plan.min_samples)
        assert [message["progress"] for message in listener.messages()] == ["timing"] * 2


def test_other_operations_run_in_turn_before_what_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six others, four before each of three timed calls: each of them runs twice."""
    runs: list[str] = []

    def six(arena: Arena, dtype: DType, numel: int, hidden: int) -> Iterator[TimedOperation]:
        for name in "abcdef":
            call = Call(partial(runs.append, name))
            yield TimedOperation(name, dtype, 1.0, lambda call=call: call, 0)  # type: ignore[misc]

    monkeypatch.setattr(stub_operations, "elementwise_operations", six)
    bench = Bench(0, Party.local(1), CPU, tiny_plan())
    bench.timer(0.0).point(1, lambda: Call(partial(runs.append, "timed")), 0)
    assert Counter(runs) == {**dict.fromkeys("abcdef", 2), "timed": 1 + 3}
    assert [index for index, name in enumerate(runs) if name == "timed"] == [0, 5, 10, 15]


def test_ranks_wait_for_each_other(world_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    original = torch.distributed.barrier
    monkeypatch.setattr(torch.distributed, "barrier", lambda: waited.append(original()))
    Bench(0, Party.local(1), CPU, tiny_plan()).barrier()
    assert len(waited) == 1
