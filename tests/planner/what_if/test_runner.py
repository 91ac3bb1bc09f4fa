"""Points are planned once each, in any number of processes, with the same outcomes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.planner.what_if.cache import Cache
from shardwright.planner.what_if.points import Point
from shardwright.planner.what_if.runner import Runner, available_cores
from shardwright.specs import InputError
from tests.planner.what_if.small import QUICK

WRONG = Point("gpt2", "dgx-h100", {"gpus": "12"})
POINTS = [QUICK, WRONG, replace(QUICK, settings={"gpus": "1", "global_batch": "8"}), QUICK]


def test_processes_change_nothing(tmp_path: Path) -> None:
    alone, together = Runner(Cache(None), jobs=1), Runner(Cache(tmp_path), jobs=2)
    seen: list[tuple[int, int]] = []
    outcomes = together.run(POINTS, lambda done, total: seen.append((done, total)))
    expected = alone.run(POINTS)
    for found, wanted in zip(outcomes, expected, strict=True):
        assert replace(found, certificate=None) == replace(wanted, certificate=None)
    assert [one.verdict for one in outcomes] == ["planned", "invalid", "planned", "planned"]
    assert together.num_planned == alone.num_planned == 3
    assert seen[0] == (0, 4)
    assert seen[-1] == (4, 4)
    assert seen == sorted(seen)

    again = Runner(Cache(tmp_path))
    assert again.run(POINTS) == outcomes
    assert again.num_planned == 0


def test_no_process_is_refused() -> None:
    with pytest.raises(InputError, match="jobs = 0"):
        Runner(Cache(None), jobs=0)
    assert available_cores() >= 1
