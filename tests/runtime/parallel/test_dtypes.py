"""Formats and where sums are carried."""

from __future__ import annotations

import pytest
import torch

from shardwright.runtime.parallel.dtypes import promoted, torch_dtype
from shardwright.specs.training import DTYPE_BYTES


def test_sizes_agree_with_the_specs() -> None:
    for name in ("fp64", "fp32", "bf16", "fp16"):
        assert torch_dtype(name).itemsize == DTYPE_BYTES[name]
    with pytest.raises(AssertionError):
        torch_dtype("fp8")


def test_half_precision_is_promoted_and_double_kept() -> None:
    assert [promoted(torch_dtype(name)) for name in ("bf16", "fp16", "fp32", "fp64")] == [
        torch.float32, torch.float32, torch.float32, torch.float64,
    ]  # fmt: skip
