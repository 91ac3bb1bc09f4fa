"""Precisions say what is kept in which dtype."""

from __future__ import annotations

import pytest

from shardwright.specs import InputError, Precision, TrainingSpec


@pytest.mark.parametrize(
    ("precision", "state_bytes"),
    [
        # weights, accumulated gradients, master copy, two moments
        ("fp64", (8, 8, 0, 16)),
        ("fp32", (4, 4, 0, 8)),
        ("bf16", (2, 4, 4, 8)),
        ("bf16-pure", (2, 2, 0, 4)),
        ("mxfp8", (2, 4, 4, 8)),
    ],
)
def test_bytes_per_parameter(precision: str, state_bytes: tuple[int, ...]) -> None:
    dtypes = TrainingSpec(global_batch=1, seq_len=1, precision=Precision(precision)).dtypes
    assert state_bytes == (
        dtypes.parameter_bytes,
        dtypes.gradient_bytes,
        dtypes.master_bytes,
        2 * dtypes.moment_bytes,
    )


def test_every_precision_is_described() -> None:
    for precision in Precision:
        assert TrainingSpec(global_batch=1, seq_len=1, precision=precision).dtypes.matmul


def test_fp8_alone_means_a_scale_per_tensor() -> None:
    assert Precision("fp8") is Precision.FP8_TENSOR


def test_tokens_per_step_and_bad_values() -> None:
    assert TrainingSpec(global_batch=8, seq_len=32).tokens_per_step == 256
    with pytest.raises(InputError, match=r"global_batch: .*greater than 0"):
        TrainingSpec.from_value({"global_batch": 0, "seq_len": 32})
    with pytest.raises(InputError, match="precision"):
        TrainingSpec.from_value({"global_batch": 1, "seq_len": 32, "precision": "fp12"})
