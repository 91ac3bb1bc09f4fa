"""The largest and the fewest: against a list of all values, monotone and not, and by planning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from shardwright.planner.what_if.cache import Cache
from shardwright.planner.what_if.points import Outcome, Point, evaluate
from shardwright.planner.what_if.runner import Runner, Watch
from shardwright.planner.what_if.solve import Solved, Unknown, solve
from shardwright.specs import InputError
from tests.planner.what_if.small import QUICK, infeasible, planned


class Pretended(Runner):
    """Plans nothing: what works is said."""

    def __init__(self, unknown: Unknown, works: Callable[[int], bool]) -> None:
        super().__init__(Cache(None), jobs=1)
        self.unknown, self.works = unknown, works
        self.asked: list[int] = []

    def run(self, points: Sequence[Point], watch: Watch | None = None) -> list[Outcome]:
        values = [int(point.settings[self.unknown]) for point in points]
        self.asked += values
        return [planned() if self.works(value) else infeasible(f"at {value}") for value in values]


def pretended(unknown: Unknown, works: Callable[[int], bool], point: Point = QUICK) -> Solved:
    runner = Pretended(unknown, works)
    found = solve(unknown, point, runner, lambda outcome: outcome.verdict == "planned")
    assert len(runner.asked) == len(set(runner.asked)), "a value was planned twice"
    return found


@pytest.mark.parametrize("most", [1, 2, 3, 31, 32, 33, 100, 511, 512])
def test_the_largest_depth_that_works_is_found(most: int) -> None:
    found = pretended("layers", lambda layers: layers <= most)
    assert found.value == most
    assert found.beyond == (None if most == 512 else f"layers = {most + 1}: at {most + 1}")
    assert len(found.tried) < 30


def test_sequences_are_multiples_of_1024() -> None:
    assert pretended("seq_len", lambda length: length < 100_000).value == 97 * 1024


def test_a_gap_right_above_does_not_hide_a_larger_answer() -> None:
    assert pretended("layers", lambda n: n <= 40 or n == 42).value == 42


def test_small_values_that_do_not_work_are_passed_over() -> None:
    assert pretended("layers", lambda n: 5 <= n <= 40).value == 40


@pytest.mark.parametrize("unknown", ["layers", "micro_batch", "gpus"])
def test_where_nothing_works_the_reason_is_given(unknown: Unknown) -> None:
    found = pretended(unknown, lambda value: False)
    assert found.value is None
    assert "at " in (found.beyond or "")


def test_micro_batches_divide_the_global_batch() -> None:
    point = replace(QUICK, settings={"gpus": "2", "global_batch": "12"})
    found = pretended("micro_batch", lambda size: size in (1, 2, 4), point)
    assert found.value == 4
    assert found.is_exhaustive
    assert list(found.tried) == [1, 2, 3, 4, 6, 12]
    assert found.beyond == "micro_batch = 6: at 6"


@pytest.mark.parametrize("least", [1, 2, 3, 7, 8, 16, 24, 40, 72, 128])
def test_the_fewest_devices_are_found_one_by_one_where_they_are_few(least: int) -> None:
    found = pretended("gpus", lambda count: count >= least)
    assert found.value == least
    assert found.is_exhaustive


def test_counts_that_do_not_divide_are_passed_over() -> None:
    assert pretended("gpus", lambda count: count in (48, 64, 128, 256)).value == 48
    assert pretended("gpus", lambda count: count >= 40 and not count & (count - 1)).value == 64


def test_counts_against_the_rules_say_nothing_of_those_around_them() -> None:
    class Divided(Pretended):
        def run(self, points: Sequence[Point], watch: Watch | None = None) -> list[Outcome]:
            outcomes = super().run(points, watch)
            against = {"considered": 9, "excluded_by_rules": 9, "optimal": True, "gap": 0.0}
            return [
                replace(one, certificate=against) if int(point.settings["gpus"]) % 768 else one
                for one, point in zip(outcomes, points, strict=True)
            ]

    def works(count: int) -> bool:
        return count in (2**13, 2**14) or (count >= 4608 and count % 768 == 0)

    found = solve("gpus", QUICK, Divided("gpus", works), lambda one: one.verdict == "planned")
    assert found.value == 4608


def test_nodes_without_a_network_stand_alone() -> None:
    point = replace(QUICK, cluster="pcie-8x4090", settings={})
    assert max(pretended("gpus", lambda count: False, point).tried) <= 8


def test_many_devices_are_found_by_halving() -> None:
    found = pretended("gpus", lambda count: count >= 10_008)
    assert found.value == 10_008
    assert not found.is_exhaustive
    assert len(found.tried) < 40
    assert found.tried[10_000] is False


def test_the_fewest_devices_of_a_real_model() -> None:
    point = Point("llama-3.1-8b", "dgx-h100", {"seq_len": "1k", "global_batch": "12", "nodes": "4"},
                  fix="cp=1,pp=1,vpp=1")  # fmt: skip
    runner = Runner(Cache(None), jobs=1)
    found = solve("gpus", point, runner, lambda outcome: outcome.verdict == "planned")
    assert found.value is not None
    settings = {"seq_len": "1k", "global_batch": "12"}
    verdicts = [
        evaluate(replace(point, settings={**settings, "gpus": f"{count}"})).verdict
        for count in range(1, found.value + 1)
    ]
    assert verdicts == ["infeasible"] * (found.value - 1) + ["planned"]


def test_groups_of_nodes_leave_open_which_would_grow() -> None:
    from shardwright.hardware_profiles.resolve import catalogue_profile, resolve_cluster
    from shardwright.specs import ClusterSpec

    old, new = (resolve_cluster(slug).devices.groups[0] for slug in ("dgx-a100-80gb", "dgx-h100"))
    both = ClusterSpec(name="both", groups=(old, new), between_groups=new.inter_node)
    with pytest.raises(InputError, match="several groups"):
        pretended("gpus", lambda count: True, Point("gpt2", catalogue_profile(both, "test")))
