"""A whole profile of this machine, coarse, and what is made of its findings."""

from __future__ import annotations

import pytest

from shardwright.cost_models.blocks.operations import Collective, Elementwise, Matmul
from shardwright.cost_models.communication import CommunicationModel
from shardwright.cost_models.compute import ComputeModel
from shardwright.hardware_profiles.discover import Host, cpu_cluster, read_host
from shardwright.hardware_profiles.measure import MeasurePlan, profile
from shardwright.hardware_profiles.measure.session import accuracy, with_measured_rates
from shardwright.hardware_profiles.profile import Curve, HardwareProfile, Parameter, Point
from shardwright.specs import InputError, SoftwareSpec

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


@pytest.fixture(scope="module")
def progress() -> list[tuple[str, float]]:
    return []


@pytest.fixture(scope="module")
def measured(progress: list[tuple[str, float]]) -> HardwareProfile:
    plan = MeasurePlan.quick()
    return profile(num_ranks=2, progress=lambda *heard: progress.append(heard), plan=plan)


@pytest.mark.multiprocess
class TestProfile:
    def test_it_reads_back_as_it_was_written(self, measured: HardwareProfile) -> None:
        assert HardwareProfile.from_json(measured.to_json()) == measured
        assert measured.num_ranks == 2
        assert measured.devices.num_devices == 2
        assert "torch" in measured.provenance.software

    def test_progress_goes_from_start_to_end(
        self, measured: HardwareProfile, progress: list[tuple[str, float]]
    ) -> None:
        shares = [share for _, share in progress]
        assert shares == sorted(shares)
        assert shares[0] == 0.0
        assert progress[-1] == ("done", 1.0)

    def test_every_kind_of_operation_has_curves(self, measured: HardwareProfile) -> None:
        ops = {curve.op.partition("@")[0] for curve in measured.curves}
        assert ops >= {
            "launch", "elementwise", "elementwise/rms_norm.forward", "elementwise/adamw",
            "matmul/forward", "matmul/input_gradient", "matmul/weight_gradient",
            "attention/forward", "attention/backward",
            "shared/matmul", "shared/attention", "shared/elementwise", *KINDS,
        }  # fmt: skip
        busy = {c.concurrency for c in measured.curves if c.op == "shared/matmul"}
        assert busy == {1, 2}

    def test_points_are_positive_and_ascend(self, measured: HardwareProfile) -> None:
        for curve in measured.curves:
            sizes = [point.x for point in curve.points]
            assert sizes == sorted(set(sizes)), curve.op
            assert all(point.median_s > 0 and point.n >= 1 for point in curve.points), curve.op

    def test_rates_of_the_device_are_measured(self, measured: HardwareProfile) -> None:
        device = measured.devices.accelerator
        assert device.provenance == "measured"
        assert 1e9 < device.peak_flops_per_s["fp32"] < 1e14
        assert 1e8 < device.memory_bandwidth_bytes_per_s < 1e13
        assert 0 < device.usable_memory_bytes < device.memory_bytes
        assert measured.devices.groups[0].intra_node.provenance == "measured"

    def test_it_prices_what_was_measured(self, measured: HardwareProfile) -> None:
        compute = ComputeModel(measured, SoftwareSpec())
        point = next(c.points[0] for c in measured.curves if c.op == "matmul/forward@n=32,k=32")
        assert compute.seconds(Matmul("up.forward", 32, 32, 32, "fp32")) <= point.median_s * 1.5
        assert compute.seconds(Elementwise("rms_norm.forward", 2**16, "fp32"), 2) > 0
        call = Collective("sum", "all_reduce", "tp", 2**16, "fp32")
        assert 1e-6 < CommunicationModel(measured).seconds(call, (0, 1)) < 1.0


def test_fewer_than_one_rank_is_refused() -> None:
    with pytest.raises(InputError, match="0 ranks"):
        profile(num_ranks=0)


def test_a_rank_s_rates_are_those_of_its_share_of_the_cores() -> None:
    host = Host("cpu", cores=2, clock_hertz=1e9, memory_bytes=2**34, available_memory_bytes=2**33)
    curves = [
        curve("matmul/forward@n=8,k=8", "flops", [(1e9, 0.01), (1e10, 0.05)]),
        curve("elementwise", "bytes", [(1e6, 1e-4), (1e8, 0.02)]),
        curve("send_recv", "bytes", [(1e3, 1e-5), (1e7, 0.01)], shape=(2, 1)),
    ]
    used = Parameter(
        name="process_memory_bytes", value=2**28, unit="B", kind="measured", fitted_from="test"
    )
    cluster = with_measured_rates(cpu_cluster(host, 4), curves, [used])
    device = cluster.accelerator
    assert device.peak_flops_per_s == {"fp32": 1e11}  # 2e11 of a core, half a core for each rank
    assert device.memory_bandwidth_bytes_per_s == 2.5e9
    assert device.usable_memory_bytes == 2**31 - 2**28
    tier = cluster.groups[0].intra_node
    assert (tier.bandwidth_bytes_per_s, tier.latency_s) == (1e9, 1e-5)


def curve(
    op: str, quantity: str, measured: list[tuple[float, float]], shape: tuple[int, int] = (1, 1)
) -> Curve:
    points = tuple(Point(x, seconds, 0.0, 5) for x, seconds in measured)
    return Curve.model_validate(
        {"op": op, "quantity": quantity, "dtype": "fp32", "group_shape": shape, "points": points}
    )


@pytest.mark.parametrize("num_ranks", [1, 64])
def test_a_profile_states_how_far_its_predictions_were_off(num_ranks: int) -> None:
    stated = {p.name: p.value for p in accuracy(cpu_cluster(read_host(), num_ranks))}
    assert stated.keys() == {"band.low_ratio", "band.high_ratio", "tie.ratio"}
    assert stated["band.low_ratio"] <= 1 < stated["band.high_ratio"]
    assert 1 < stated["tie.ratio"] < 1.5
