"""Prices of collectives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost_models.blocks.operations import Collective, CollectiveKind
from shardwright.cost_models.communication import CommunicationModel, group_path
from shardwright.hardware_profiles.profile import Curve, Point
from shardwright.specs import SharedResource
from tests.cost_models.profiles import PARAMETERS, cluster, profile

KINDS: tuple[CollectiveKind, ...] = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv",
)  # fmt: skip


def call(kind: CollectiveKind, input_bytes: int) -> Collective:
    return Collective("test", kind, "tp", input_bytes, "bf16")


def curve(
    op: str, shape: tuple[int, int], measured: dict[int, float], *, groups: int = 1,
    dtype: str = "fp32",
) -> Curve:  # fmt: skip
    points = tuple(Point(x, seconds, 0.0, 5) for x, seconds in measured.items())
    return Curve.model_validate(
        {"quantity": "bytes", "op": op, "dtype": dtype, "group_shape": shape,
         "concurrency": groups, "points": points}
    )  # fmt: skip


class TestFormulas:
    """100 GB/s at 0.5 inside a node, 10 GB/s at 0.8 between; latencies of 10, 1 and 5 us."""

    def test_ring_inside_a_node(self) -> None:
        prices = CommunicationModel(profile())
        size = 10**9
        expected = {
            "all_reduce": 24e-6 + 2 * 7 / 8 * size / 50e9,
            "reduce_scatter": 17e-6 + 7 / 8 * size / 50e9,
            "all_gather": 17e-6 + 7 * size / 50e9,
            "all_to_all": 17e-6 + 7 / 8 * size / 50e9,
            "broadcast": 17e-6 + size / 50e9,
        }
        for kind in KINDS[:-1]:
            assert prices.seconds(call(kind, size), tuple(range(8))) == pytest.approx(
                expected[kind]
            ), kind

    def test_a_message(self) -> None:
        prices = CommunicationModel(profile(cluster(num_nodes=2)))
        assert prices.seconds(call("send_recv", 10**9), (0, 1)) == pytest.approx(11e-6 + 0.02)
        assert prices.seconds(call("send_recv", 10**9), (0, 8)) == pytest.approx(15e-6 + 0.125)

    def test_one_rank_alone_says_nothing(self) -> None:
        assert CommunicationModel(profile()).seconds(call("all_reduce", 10**9), (3,)) == 0.0

    def test_across_nodes_all_adapters_of_the_group_carry_the_ring(self) -> None:
        prices = CommunicationModel(profile(cluster(num_nodes=4)))
        size = 10**9
        full = prices.seconds(call("reduce_scatter", size), tuple(range(32)))
        ring_latency = 10e-6 + 28 * 1e-6 + 3 * 5e-6
        # 8 x 8 GB/s between nodes against 50 GB/s inside: the inside is narrower.
        assert full == pytest.approx(ring_latency + 31 / 32 * size / 50e9)
        sparse = prices.seconds(call("reduce_scatter", size), (0, 8, 16, 24))
        assert sparse == pytest.approx(10e-6 + 3 * 5e-6 + 3 / 4 * size / 8e9)

    def test_groups_that_share_adapters_get_a_part_each(self) -> None:
        one_nic = SharedResource(kind="nic", capacity=1, ranks=8)
        prices = CommunicationModel(profile(cluster(num_nodes=2, shared=(one_nic,))))
        pair = (0, 8)
        alone = prices.seconds(call("send_recv", 10**9), pair)
        assert alone == pytest.approx(15e-6 + 10**9 / 8e9)
        eight = prices.seconds(call("send_recv", 10**9), pair, concurrent_groups=8)
        assert eight == pytest.approx(15e-6 + 8 * 10**9 / 8e9)

    def test_a_mesh_gives_small_groups_fewer_links(self) -> None:
        prices = CommunicationModel(profile(cluster(pair_bytes_per_s=15e9)))
        size = 10**9
        two = prices.seconds(call("all_gather", size), (0, 1))
        assert two == pytest.approx(11e-6 + size / 7.5e9)
        eight = prices.seconds(call("all_gather", size), tuple(range(8)))
        assert eight == pytest.approx(17e-6 + 7 * size / 50e9)

    def test_all_to_all_across_nodes_by_what_leaves_the_node(self) -> None:
        prices = CommunicationModel(profile(cluster(num_nodes=2)))
        seconds = prices.seconds(call("all_to_all", 10**9), tuple(range(16)))
        latency = 10e-6 + 14 * 1e-6 + 5e-6
        assert seconds == pytest.approx(latency + 0.5e9 / 8e9)

    def test_small_all_reduce_on_many_nodes_by_a_tree(self) -> None:
        prices = CommunicationModel(profile(cluster(num_nodes=64)))
        ranks = tuple(range(0, 512, 8))
        tree = 10e-6 + 2 * 6 * 5e-6 + 2 * 1024 / 8e9
        assert prices.seconds(call("all_reduce", 1024), ranks) == pytest.approx(tree)

    def test_adding_switches_help_full_nodes_most(self) -> None:
        parameters = PARAMETERS | {
            "in_switch_all_reduce.gain": 1.4, "in_switch_all_reduce.min_ranks": 5,
        }  # fmt: skip
        prices = CommunicationModel(profile(parameters=parameters))
        ring = CommunicationModel(profile())
        size = 10**9
        full, four, six = (tuple(range(n)) for n in (8, 4, 6))
        with_switch = prices.seconds(call("all_reduce", size), full) - 12e-6
        assert with_switch == pytest.approx(2 * 7 / 8 * size / 50e9 / 1.4)
        assert prices.seconds(call("all_reduce", size), four) == pytest.approx(
            ring.seconds(call("all_reduce", size), four)
        )
        gain_of_six = 1.4 * (10 / 7) / (14 / 9)
        assert prices.seconds(call("all_reduce", size), six) == pytest.approx(
            12e-6 + 2 * 5 / 6 * size / 50e9 / gain_of_six
        )
        assert prices.seconds(call("all_gather", size), full) == ring.seconds(
            call("all_gather", size), full
        )

    @given(st.sampled_from(KINDS), st.integers(0, 10**10), st.integers(0, 10**10))
    def test_more_bytes_never_cost_less(self, kind: CollectiveKind, one: int, other: int) -> None:
        prices = CommunicationModel(profile(cluster(num_nodes=2)))
        ranks = (0, 8) if kind == "send_recv" else tuple(range(16))
        small, large = sorted((one, other))
        assert prices.seconds(call(kind, small), ranks) <= prices.seconds(call(kind, large), ranks)


class TestMeasured:
    def prices(self, *curves: Curve) -> CommunicationModel:
        return CommunicationModel(profile(curves=curves))

    def test_a_measured_shape_as_measured(self) -> None:
        prices = self.prices(curve("all_reduce", (4, 1), {1000: 1e-4, 100000: 1e-3}))
        assert prices.seconds(call("all_reduce", 1000), (0, 1, 2, 3)) == pytest.approx(1e-4)
        assert prices.seconds(call("all_reduce", 100000), (0, 1, 2, 3)) == pytest.approx(1e-3)

    def test_its_own_dtype_before_others(self) -> None:
        prices = self.prices(
            curve("all_reduce", (2, 1), {1000: 1e-4}),
            curve("all_reduce", (2, 1), {1000: 3e-4}, dtype="bf16"),
        )
        assert prices.seconds(call("all_reduce", 1000), (0, 1)) == pytest.approx(3e-4)

    @pytest.mark.parametrize(
        ("groups", "seconds"), [(1, 1e-4), (2, 3e-4), (3, 4e-4), (4, 5e-4), (8, 10e-4)]
    )
    def test_by_groups_at_once(self, groups: int, seconds: float) -> None:
        prices = self.prices(
            curve("all_reduce", (2, 1), {1000: 1e-4}),
            curve("all_reduce", (2, 1), {1000: 3e-4}, groups=2),
            curve("all_reduce", (2, 1), {1000: 5e-4}, groups=4),
        )
        found = prices.seconds(call("all_reduce", 1000), (0, 1), groups)
        assert found == pytest.approx(seconds)

    def test_another_size_of_group_by_the_ring_s_steps_and_bytes(self) -> None:
        prices = self.prices(curve("all_reduce", (2, 1), {1000: 1e-4, 100000: 1e-3}))
        latency = 1e-4 * 6 / 2  # six steps instead of two
        transfer = 9e-4 * 1.5 / 1.0  # 2 x 3 / 4 of the bytes instead of 2 x 1 / 2
        found = prices.seconds(call("all_reduce", 100000), (0, 1, 2, 3))
        assert found == pytest.approx(latency + transfer)

    def test_across_nodes_a_formula_where_only_one_node_was_measured(self) -> None:
        wide = profile(cluster(num_nodes=2), [curve("all_reduce", (2, 1), {1000: 1e-4})])
        formula = CommunicationModel(profile(cluster(num_nodes=2)))
        found = CommunicationModel(wide).seconds(call("all_reduce", 1000), (0, 8))
        assert found == formula.seconds(call("all_reduce", 1000), (0, 8))


class TestPath:
    def test_inside_one_node(self) -> None:
        path = group_path(cluster(num_nodes=2), (8, 9, 10, 11))
        assert path.shape == (4, 1)
        assert path.inter is None

    def test_across_nodes(self) -> None:
        path = group_path(cluster(num_nodes=4), (0, 1, 8, 9, 24, 25))
        assert path.shape == (2, 3)
        assert path.inter is not None
        assert path.inter.name == "between"

    def test_unequal_parts_count_by_the_smallest(self) -> None:
        path = group_path(cluster(num_nodes=2), (6, 7, 8))
        assert path.shape == (1, 2)
        assert path.num_ranks == 3
