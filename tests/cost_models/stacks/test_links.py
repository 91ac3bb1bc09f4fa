"""Groups of ranks by size and stride, and what their collectives cost."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from shardwright.cost_models.communication import CollectiveFormulas, group_path
from shardwright.cost_models.stacks.links import Links, axes, strided_path
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.specs import ClusterSpec, Layout, SharedResource, TrainingSpec
from tests.cost_models.profiles import PARAMETERS, cluster, profile
from tests.cost_models.stacks.cases import small

VALUES = PARAMETERS | {"stack.collective_ratio": 1.0}
MODEL = small(num_hidden_layers=8)
TRAINING = TrainingSpec(global_batch=64, seq_len=32)


def layout(**choices: Any) -> Layout:
    return Layout.of(MODEL, TRAINING, **choices)


def links(devices: ClusterSpec, **changes: float) -> Links:
    values = VALUES | changes
    return Links(profile(devices, parameters=values), values)


GRIDS = [
    dict(zip(("tp", "cp", "dp", "pp", "ep", "etp"), grid, strict=True))
    for grid in itertools.product((1, 2), (1, 2), (1, 2, 4), (1, 2), (1, 2, 4), (1, 2))
    if grid[0] * grid[1] * grid[2] % (grid[4] * grid[5]) == 0
]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_axes_are_those_of_the_world_rank_by_rank(grid: dict[str, int]) -> None:
    """Every group of an axis is first, first + stride, ...: against the numbering of `world`."""
    found = axes(layout(**grid))
    world = layout(**grid).world_size
    expected = {
        "tp": world.groups("tp"),
        "cp": world.groups("cp"),
        "dp": world.groups("cp", "dp"),
        "ep": world.expert_groups("ep"),
        "etp": world.expert_groups("etp"),
        "edp": world.expert_groups("edp"),
        "world": [list(range(world.world))],
    }
    for name, groups in expected.items():
        size, stride = found[name]
        for group in groups:
            first = group[0]
            if size > 1:
                assert group == list(range(first, first + size * stride, stride)), name
            else:
                assert len(group) == 1
    size, stride = found["pp"]
    if grid["pp"] > 1:
        assert (size, stride) == (2, world.groups("pp")[0][1])


@pytest.mark.parametrize(("dp", "cp", "tp", "degree"), [(8, 1, 1, 2), (4, 2, 2, 4), (4, 1, 2, 4)])
def test_a_shard_group_and_its_replicas_cover_the_data_parallel_ranks(
    dp: int, cp: int, tp: int, degree: int
) -> None:
    found = axes(layout(dp=dp, cp=cp, tp=tp, zero=3, zero_shard_degree=degree))
    (size, stride), (copies, between) = found["shard"], found["replica"]
    covered = sorted(a * stride + b * between for a in range(size) for b in range(copies))
    assert covered == layout(dp=dp, cp=cp, tp=tp).world_size.groups("cp", "dp")[0]


CLUSTERS = {
    name: resolve_cluster(name).devices
    for name in ("dgx-h100:4", "gb200-nvl72:36", "h100-sxm5-80gb:4x8,inter=100GB/s")
}
EVEN_GROUPS = [
    (name, size, stride)
    for name, devices in CLUSTERS.items()
    for size, stride in itertools.product((2, 4, 6, 8, 9, 16), (1, 2, 4, 8, 9, 16, 72))
    for domain in (devices.groups[0].scale_up_domain_gpus,)
    if (domain % stride == 0 or stride % domain == 0)
    and (domain % (size * stride) == 0 or size * stride % domain == 0)
    and size * stride <= devices.num_devices
]
"""(Cluster, size, stride) where every group fills as much of each domain that it meets. Others are
priced by the domain that holds most of a group."""


@pytest.mark.parametrize(("name", "size", "stride"), EVEN_GROUPS)
def test_paths_are_those_of_the_list_of_ranks(name: str, size: int, stride: int) -> None:
    """Whichever group it is."""
    devices = CLUSTERS[name]
    found = strided_path(devices, size, stride)
    for first in range(0, devices.num_devices - size * stride + 1, size * stride):
        exact = group_path(devices, tuple(range(first, first + size * stride, stride)))
        assert (found.shape, found.intra, found.inter) == (exact.shape, exact.intra, exact.inter)
        assert found.nic_capacity == exact.nic_capacity


def test_a_rack_is_one_domain() -> None:
    devices = resolve_cluster("gb200-nvl72:36").devices
    assert strided_path(devices, 72, 1).shape == (72, 1)
    assert strided_path(devices, 18, 4).inter is None
    assert strided_path(devices, 144, 1).shape == (72, 2)
    assert strided_path(devices, 2, 72).shape == (1, 2)


def test_a_node_in_part() -> None:
    devices = cluster(num_nodes=2, ranks_per_node=4)
    assert strided_path(devices, 2, 1).shape == (2, 1)
    assert strided_path(devices, 8, 1).shape == (4, 2)
    assert strided_path(devices, 4, 2).shape == (2, 2)


class TestSeconds:
    DEVICES = cluster(num_nodes=4)

    def test_alone_or_with_nothing_to_say_it_is_free(self) -> None:
        assert links(self.DEVICES).seconds("all_reduce", 1e9, 1, 1) == 0
        assert links(self.DEVICES).seconds("all_gather", 0.0, 8, 1) == 0

    def test_it_is_the_formulas_on_the_path(self) -> None:
        found = links(self.DEVICES).seconds("all_gather", 1e6, 8, 1)
        path = group_path(self.DEVICES, tuple(range(8)))
        exact = CollectiveFormulas(profile(self.DEVICES, parameters=VALUES), VALUES)
        assert found == exact.seconds("all_gather", 10**6, path, 1)

    def test_software_stretches_all_of_it(self) -> None:
        plain, slow = (
            links(self.DEVICES, **{"stack.collective_ratio": ratio}).seconds(
                "all_reduce", 1e8, 8, 1
            )
            for ratio in (1.0, 1.5)
        )
        assert slow == pytest.approx(1.5 * plain)

    def test_all_groups_of_a_node_share_its_adapters(self) -> None:
        shared = cluster(num_nodes=4, shared=(SharedResource(kind="nic", capacity=2.0, ranks=8),))
        own, few = (links(one).seconds("all_gather", 1e8, 4, 8) for one in (self.DEVICES, shared))
        assert few == pytest.approx(own * 8 / 2, rel=0.01)

    @pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
    def test_more_bytes_never_take_less(self, kind: Any) -> None:
        found = [
            links(self.DEVICES).seconds(kind, 2.0**n, size, stride)
            for size, stride in ((8, 1), (16, 1), (4, 8))
            for n in range(10, 30)
        ]
        for at in range(0, len(found), 20):
            assert found[at : at + 20] == sorted(found[at : at + 20])


class TestDispatch:
    DEVICES = cluster(num_nodes=4)
    """Domains of 8; 50 GB/s inside and 8 GB/s between, after efficiencies."""

    def took(self, num_bytes: float, size: int, copies: int, most: int = 0) -> float:
        return links(self.DEVICES).dispatch(num_bytes, size, 1, copies, most)

    def test_inside_a_domain_it_is_an_all_to_all(self) -> None:
        plain = links(self.DEVICES).seconds("all_to_all", 1e8, 8, 1)
        assert self.took(1e8, 8, 8) == plain

    def test_one_copy_crosses_once_anyway(self) -> None:
        plain = links(self.DEVICES).seconds("all_to_all", 1e8, 32, 1)
        assert self.took(1e8, 32, 1) == plain

    @pytest.mark.parametrize(("copies", "most"), [(2, 0), (8, 0), (8, 2), (8, 4)])
    def test_a_token_crosses_to_each_domain_once(self, copies: int, most: int) -> None:
        """4 domains: 4 (1 - (3/4)^k) are met of k chosen experts, at most ``most``; a quarter of
        these at home. By hand: that share of the bytes over 8 GB/s, and latency."""
        met = 4 * (1 - 0.75**copies)
        met = min(met, most) if most else met
        num_bytes = 1e9
        across = num_bytes * met / copies * 3 / 4 / 8e9
        latency = 10e-6 + 3 * 5e-6
        inside = num_bytes * 7 / 8 / 50e9 + 10e-6 + 7e-6
        expected = max(across + latency, inside)
        assert self.took(num_bytes, 32, copies, most) == pytest.approx(expected, rel=1e-6)

    def test_fewer_domains_are_never_slower(self) -> None:
        found = [self.took(1e9, 32, 8, most) for most in (1, 2, 3, 4, 0)]
        assert found == sorted(found)

    def test_copies_that_meet_in_a_domain_save_crossings(self) -> None:
        plain = links(self.DEVICES).seconds("all_to_all", 1e9, 32, 1)
        assert self.took(1e9, 32, 8) < plain
