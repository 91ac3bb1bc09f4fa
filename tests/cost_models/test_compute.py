"""Prices of operations on one rank."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost_models.blocks.operations import Attention, Elementwise, Matmul
from shardwright.cost_models.compute import ComputeModel
from shardwright.hardware_profiles.profile import Curve, Point
from shardwright.specs import InputError, SoftwareSpec
from tests.cost_models.profiles import PARAMETERS, profile

Measured = Sequence[tuple[float, float]]


def curve(op: str, measured: Measured, *, dtype: str = "fp32", busy: int = 1) -> Curve:
    quantity = "bytes" if "elementwise" in op else "flops"
    points = tuple(Point(x, seconds, 0.0, 5) for x, seconds in measured)
    return Curve.model_validate(
        {"quantity": quantity, "op": op, "dtype": dtype, "concurrency": busy, "points": points}
    )


def model(*curves: Curve, software: SoftwareSpec | None = None) -> ComputeModel:
    return ComputeModel(profile(curves=curves), software or SoftwareSpec())


def matmul(form: str, m: int, n: int, k: int, dtype: str = "fp32", batch: int = 1) -> Matmul:
    return Matmul(f"mlp.down.{form}", m, n, k, dtype, batch)  # type: ignore[arg-type]


def matmul_curves(form: str, rate: float) -> list[Curve]:
    return [
        curve(
            f"matmul/{form}@n={n},k={k}", [(2 * m * n * k, 2 * m * n * k / rate) for m in (8, 64)]
        )
        for n in (8, 64)
        for k in (8, 64)
    ]


def attention(*, backward: bool = False, causal: bool = True, dtype: str = "bf16") -> Attention:
    return Attention("core", 2, 4, 1024, 1024, 64, causal, backward, dtype)  # type: ignore[arg-type]


class TestMeasured:
    def test_each_form_has_its_own_curves(self) -> None:
        forms = {"forward": 1e9, "input_gradient": 2e9, "weight_gradient": 4e9}
        prices = model(*(c for form, rate in forms.items() for c in matmul_curves(form, rate)))
        for form, rate in forms.items():
            operation = matmul(form, 20, 30, 40)
            assert prices.seconds(operation) == pytest.approx(operation.flops / rate)

    def test_a_name_without_a_form_is_a_forward_product(self) -> None:
        prices = model(*matmul_curves("forward", 1e9))
        assert prices.seconds(Matmul("head", 8, 8, 8, "fp32")) == pytest.approx(1024 / 1e9)

    def test_a_batch_is_so_many_products(self) -> None:
        prices = model(*matmul_curves("forward", 1e9))
        assert prices.seconds(matmul("forward", 8, 8, 8, batch=6)) == pytest.approx(6 * 1024 / 1e9)

    def test_attention_by_direction_head_dim_and_sequence(self) -> None:
        forward = attention(dtype="fp32").flops
        prices = model(
            curve("attention/forward@head_dim=64,seq=1024", [(forward, 3e-3)]),
            curve("attention/backward@head_dim=64,seq=1024", [(2.5 * forward, 8e-3)]),
        )
        assert prices.seconds(attention(dtype="fp32")) == pytest.approx(3e-3)
        assert prices.seconds(attention(dtype="fp32", backward=True)) == pytest.approx(8e-3)

    def test_an_elementwise_operation_by_its_name_else_by_its_bytes(self) -> None:
        prices = model(
            curve("elementwise", [(1000, 1e-6), (2000, 2e-6)]),
            curve("elementwise/rms_norm", [(1000, 7e-6)]),
        )
        assert prices.seconds(Elementwise("rms_norm", 1000, "fp32")) == pytest.approx(7e-6)
        assert prices.seconds(Elementwise("other", 2000, "fp32")) == pytest.approx(2e-6)

    def test_further_kernels_of_an_unknown_operation_cost_a_smallest_call_each(self) -> None:
        prices = model(curve("elementwise", [(1000, 1e-6), (2000, 2e-6)]))
        assert prices.seconds(Elementwise("other", 2000, "fp32", kernels=4)) == pytest.approx(5e-6)

    def test_an_elementwise_dtype_that_was_not_measured_moves_as_many_bytes(self) -> None:
        prices = model(curve("elementwise", [(1000, 1e-6), (2000, 2e-6)]))
        assert prices.seconds(Elementwise("other", 2000, "fp64")) == pytest.approx(2e-6)

    def test_a_matmul_dtype_that_was_not_measured_is_refused(self) -> None:
        with pytest.raises(InputError, match="fp64"):
            model(*matmul_curves("forward", 1e9)).seconds(matmul("forward", 8, 8, 8, "fp64"))


class TestSharedCores:
    def prices(self) -> ComputeModel:
        shared = [
            curve("shared/matmul", [(1024, seconds)], busy=busy)
            for busy, seconds in ((1, 1e-6), (2, 1.5e-6), (4, 4e-6))
        ]
        return model(*matmul_curves("forward", 1e9), *shared)

    @pytest.mark.parametrize(
        ("busy", "slowdown"), [(1, 1.0), (2, 1.5), (3, 2.75), (4, 4.0), (8, 8.0)]
    )
    def test_by_busy_ranks(self, busy: int, slowdown: float) -> None:
        prices = self.prices()
        operation = matmul("forward", 8, 8, 8)
        assert prices.seconds(operation, busy) == pytest.approx(
            slowdown * prices.seconds(operation)
        )

    def test_only_the_kind_that_was_measured_is_slowed(self) -> None:
        prices = model(
            curve("elementwise", [(1000, 1e-6)]),
            curve("shared/matmul", [(1024, 1e-6)]),
            curve("shared/matmul", [(1024, 2e-6)], busy=2),
        )
        operation = Elementwise("add", 1000, "fp32")
        assert prices.seconds(operation, 2) == prices.seconds(operation)


class TestRoofline:
    """Peak 1e15 at efficiency 0.5; 1 TB/s at 0.8; tiles of 128 x 64 on 100 units; launch 5 us."""

    def test_a_large_product_by_arithmetic(self) -> None:
        operation = matmul("forward", 12800, 6400, 8192, "bf16")  # 100 x 100 tiles: whole waves
        assert model().seconds(operation) == pytest.approx(operation.flops / 5e14 + 5e-6)

    def test_a_partial_wave_takes_as_long_as_a_whole_one(self) -> None:
        waves_100 = model().seconds(matmul("forward", 12800, 6400, 4096, "bf16"))
        waves_101 = model().seconds(matmul("forward", 12801, 6400, 4096, "bf16"))
        assert waves_101 - 5e-6 == pytest.approx(1.01 * (waves_100 - 5e-6))

    def test_a_skinny_product_by_memory(self) -> None:
        moved = 2 * (1 * 4096 + 4096 * 8192 + 1 * 8192)
        seconds = model().seconds(matmul("forward", 1, 8192, 4096, "bf16"))
        assert seconds == pytest.approx(moved / 0.8e12 + 5e-6)

    def test_attention_skips_the_masked_half(self) -> None:
        flops = 4 * 2 * 4 * 1024 * 1024 * 64
        assert attention().flops == flops
        assert model().seconds(attention(causal=False)) == pytest.approx(flops / 5e14 + 5e-6)
        assert model().seconds(attention()) == pytest.approx(flops / 2 / 5e14 + 5e-6)
        backward_flops = 2.5 * flops / 2
        seconds = model().seconds(attention(backward=True))
        assert seconds == pytest.approx(backward_flops / 2.5e14 + 5e-6)

    def test_elementwise_by_bytes_and_launches(self) -> None:
        seconds = model().seconds(Elementwise("rope", 8_000_000, "bf16", kernels=3))
        assert seconds == pytest.approx(10e-6 + 15e-6)

    def test_cuda_graphs_launch_for_free(self) -> None:
        prices = model(software=SoftwareSpec(cuda_graphs=True))
        assert prices.seconds(Elementwise("rope", 8_000_000, "bf16", 3)) == pytest.approx(10e-6)

    def test_an_unknown_dtype_is_refused_with_what_is_known(self) -> None:
        with pytest.raises(InputError, match=r"fp32.*knows bf16"):
            model().seconds(matmul("forward", 8, 8, 8))

    def test_a_profile_without_the_numbers_says_which(self) -> None:
        lacking = {k: v for k, v in PARAMETERS.items() if k != "matmul_tile_m"}
        prices = ComputeModel(profile(parameters=lacking), SoftwareSpec())
        with pytest.raises(InputError, match="matmul_tile_m"):
            prices.seconds(matmul("forward", 8, 8, 8, "bf16"))

    @given(st.integers(1, 10**5), st.integers(1, 10**5), st.integers(1, 10**5))
    def test_never_faster_than_the_peak_and_never_cheaper_when_larger(
        self, m: int, n: int, k: int
    ) -> None:
        prices = model()
        operation = matmul("forward", m, n, k, "bf16")
        assert prices.seconds(operation) >= operation.flops / 5e14
        assert prices.seconds(operation) <= prices.seconds(matmul("f", m + 1, n + 1, k + 1, "bf16"))
