"""Operations repeated by one rank and by several at once."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from shardwright.cost_models.compute import CoreSharing
from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.measure.sharing import busy_counts, sharing_curves
from shardwright.hardware_profiles.profile import Curve
from tests.hardware_profiles.measure.stub_operations import tiny_plan

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("world", "counts"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8])]
)
def test_busy_ranks_double_up_to_all_of_them(world: int, counts: list[int]) -> None:
    assert busy_counts(world) == counts


def alone(budget_s: float) -> dict[str, Curve]:
    plan = tiny_plan(largest_extent=256, elementwise_bytes=(2**10, 2**11, 2**12))
    return {
        curve.op: curve for curve in sharing_curves(Bench(0, Party.local(1), CPU, plan), budget_s)
    }


@pytest.mark.usefixtures("world_of_one")
class TestAlone:
    def test_each_kind_has_a_curve_by_its_own_measure_of_work(self) -> None:
        curves = alone(budget_s=0.02)
        found = {op: (c.quantity, [point.x for point in c.points]) for op, c in curves.items()}
        assert found == {
            "shared/matmul": ("flops", [2 * 16**3, 2 * 64**3]),
            "shared/attention": ("flops", [2 * 2 * 8 * 64 * seq**2 for seq in (16, 32)]),
            "shared/elementwise": ("bytes", [3 * 2**10, 3 * 2**12]),
        }

    def test_a_window_too_short_for_a_call_still_has_one(self) -> None:
        for curve in alone(budget_s=1e-9).values():
            assert all(point.median_s > 0 for point in curve.points)

    def test_pricing_finds_all_three(self) -> None:
        """One rank alone was measured, so two that share a core are taken to halve its speed."""
        sharing = CoreSharing(list(alone(budget_s=0.02).values()))
        for kind in ("matmul", "attention", "elementwise"):
            assert sharing.slowdown(kind, 2, 1e4) == 2.0


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("rank", [0, 1])
def test_the_mean_is_that_of_the_ranks_that_are_busy(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two ranks, told that the other needs a whole second for each call."""

    told: list[float] = []

    def gather(everyone: torch.Tensor, mine: torch.Tensor) -> None:
        told.append(mine.item())
        everyone.fill_(1.0)
        everyone[rank] = mine

    monkeypatch.setattr(dist, "all_gather_into_tensor", gather)
    curves = list(sharing_curves(Bench(rank, Party.local(2), CPU, tiny_plan()), budget_s=0.02))
    assert [curve.concurrency for curve in curves] == [1, 2] * 3
    points = [(curve.concurrency, point) for curve in curves for point in curve.points]
    for (busy, point), own_s in zip(points, told, strict=True):
        assert (own_s == 0.0) == (rank >= busy)  # one that idles has nothing to tell
        everyone = [1.0] * 2
        everyone[rank] = own_s
        assert point.n == busy
        assert point.median_s == pytest.approx(sum(everyone[:busy]) / busy)
