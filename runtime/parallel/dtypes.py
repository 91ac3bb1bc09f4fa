"""Names of number formats to torch dtypes, and the format in which sums are carried."""

from __future__ import annotations

import torch

from shardwright.specs.training import DType

_TORCH: dict[DType, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype of a storage format; fp8 and fp4 are formats of matrix products only."""
    assert dtype in _TORCH, dtype
    return _TORCH[dtype]


def promoted(dtype: torch.dtype) -> torch.dtype:
    """Where numerics need more than half precision: fp32, or fp64 for fp64."""
    return torch.promote_types(torch.float32, dtype)
