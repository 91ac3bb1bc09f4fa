"""`TrainingSpec`: how a model is trained, apart from the layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from shardwright.specs._base import Spec
from shardwright.specs.ranges import MOST_TOKENS, Extent, Seed, SequenceCount

DType = Literal["fp64", "fp32", "bf16", "fp16", "fp8", "fp4"]

DTYPE_BYTES: dict[DType, float] = {
    "fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp4": 0.5,
}  # fmt: skip


class Precision(StrEnum):
    """How numbers are kept; `dtypes` says what each name means in bytes."""

    FP64 = "fp64"
    """Everything in double precision: for parity tests."""
    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    """bf16 compute, fp32 master weights and gradient reduction."""
    BF16_PURE = "bf16-pure"
    """Weights, gradients and moments in bf16, no master copy."""
    FP8_DELAYED = "fp8-delayed"
    FP8_TENSOR = "fp8-tensor"
    FP8_BLOCK = "fp8-block"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"

    @classmethod
    def _missing_(cls, value: object) -> Precision | None:
        return cls.FP8_TENSOR if value == "fp8" else None


@dataclass(frozen=True, slots=True)
class PrecisionDTypes:
    """The dtype of each thing that a precision keeps."""

    parameter: DType
    """Weights as the layers read them, and activations."""
    matmul: DType
    """Operands of the large matrix products."""
    gradient: DType
    """The buffer in which gradients are accumulated over micro-batches and reduced."""
    master: DType | None
    """A second copy of the weights that the optimizer updates; None = the weights themselves."""
    moment: DType

    @property
    def parameter_bytes(self) -> int:
        return int(DTYPE_BYTES[self.parameter])

    @property
    def gradient_bytes(self) -> int:
        return int(DTYPE_BYTES[self.gradient])

    @property
    def master_bytes(self) -> int:
        return 0 if self.master is None else int(DTYPE_BYTES[self.master])

    @property
    def moment_bytes(self) -> int:
        return int(DTYPE_BYTES[self.moment])


_DTYPES: dict[Precision, PrecisionDTypes] = {
    Precision.FP64: PrecisionDTypes("fp64", "fp64", "fp64", None, "fp64"),
    Precision.FP32: PrecisionDTypes("fp32", "fp32", "fp32", None, "fp32"),
    Precision.FP16: PrecisionDTypes("fp16", "fp16", "fp32", "fp32", "fp32"),
    Precision.BF16: PrecisionDTypes("bf16", "bf16", "fp32", "fp32", "fp32"),
    Precision.BF16_PURE: PrecisionDTypes("bf16", "bf16", "bf16", None, "bf16"),
    Precision.FP8_DELAYED: PrecisionDTypes("bf16", "fp8", "fp32", "fp32", "fp32"),
    Precision.FP8_TENSOR: PrecisionDTypes("bf16", "fp8", "fp32", "fp32", "fp32"),
    Precision.FP8_BLOCK: PrecisionDTypes("bf16", "fp8", "fp32", "fp32", "fp32"),
    Precision.MXFP8: PrecisionDTypes("bf16", "fp8", "fp32", "fp32", "fp32"),
    Precision.NVFP4: PrecisionDTypes("bf16", "fp4", "fp32", "fp32", "fp32"),
}


_TRAINABLE = r"^(full|q?lora:[1-9]\d{0,4}|frozen:[a-z_]+(\+[a-z_]+)*)$"


class OptimizerSpec(Spec):
    """The optimizer, the clipping and the learning-rate schedule (warm-up, then cosine)."""

    name: Literal["adamw", "adamw-8bit", "adafactor", "muon", "sgd"] = "adamw"
    """``muon``: momentum alone for matrices, AdamW for the rest; ``adafactor``: one moment in
    rows and columns (Shazeer & Stern 2018); ``adamw-8bit``: moments in blocks of one byte."""
    learning_rate: PositiveFloat = 3e-4
    min_learning_rate: NonNegativeFloat = 3e-5
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    """Applied to matrices only, not to norms and biases."""
    clip_norm: PositiveFloat | None = 1.0
    """Largest global gradient norm; null = no clipping."""
    warmup_steps: int = Field(default=10, ge=0, le=10**12)
    decay_steps: int | None = Field(default=None, gt=0, le=10**12)
    """Steps until the minimum is reached; null = the length of the run."""


class TrainingSpec(Spec):
    """Batch, precision, optimizer and what is trainable."""

    global_batch: SequenceCount
    """Sequences per optimizer step over all ranks."""
    seq_len: Extent
    """Tokens per sequence."""
    precision: Precision = Precision.BF16
    optimizer: OptimizerSpec = OptimizerSpec()
    gradient_dtype: DType | None = None
    """In which gradients are accumulated and reduced; null = by precision (`dtypes`)."""
    moment_dtype: DType | None = None
    """Of the optimizer's moments; null = by precision."""
    trainable: str = Field(default="full", pattern=_TRAINABLE)
    """``full``; ``lora:16`` (adapters of rank 16 on every projection, the rest frozen);
    ``qlora:16`` (the same, frozen weights in 4 bits); ``frozen:vision`` (that tower is)."""
    token_budget: int | None = Field(default=None, gt=0, le=MOST_TOKENS)
    """Tokens to train on in all."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    seed: Seed = 0

    @property
    def dtypes(self) -> PrecisionDTypes:
        by_precision = _DTYPES[self.precision]
        if self.gradient_dtype is None and self.moment_dtype is None:
            return by_precision
        return replace(
            by_precision,
            gradient=self.gradient_dtype or by_precision.gradient,
            moment=self.moment_dtype or by_precision.moment,
        )

    @property
    def adapter_rank(self) -> int | None:
        """The rank of LoRA's adapters; None where weights themselves are trained."""
        kind, _, rank = self.trainable.partition(":")
        return int(rank) if kind.endswith("lora") else None

    @property
    def frozen_towers(self) -> frozenset[str]:
        """Towers whose weights stay as they are."""
        kind, _, names = self.trainable.partition(":")
        return frozenset(names.split("+")) if kind == "frozen" else frozenset()

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.seq_len
