"""How one layer is cut over ranks, and with which kernels it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

CpKind = Literal["ring", "all_to_all", "all_gather"]

QUANTISED_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""NF4 in blocks of 64 with scales of one byte, these in blocks of 256 with fp32 scales
(QLoRA, arXiv 2305.14314, section 3)."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """What of layout, training and software the parts of a layer depend on.

    Ranks with unequal shares are priced by the fullest: shares are rounded up.
    """

    batch: int
    """Sequences per micro-batch."""
    seq_len: int
    tp: int = 1
    sequence_parallel: bool = False
    cp: int = 1
    cp_kind: CpKind = "ring"
    ep: int = 1
    etp: int = 1
    item_bytes: int = 2
    """Of an activation."""
    matmul_bytes: float = 2
    """Of an operand of the large products: 1 in fp8."""
    flash: bool = True
    """Whether attention runs in the fused kernel."""
    flash_sinks: bool = True
    """Whether that kernel takes attention sinks."""
    dropout: bool = False
    """Whether dropout runs after attention scores, attention and MLP."""
    adapter_rank: int | None = None
    frozen: bool = False
    """Weights need no gradients (LoRA's base weights, a frozen tower)."""
    keeps_narrow: bool = False
    """Whether operands of the large products are kept in their dtype, not in the activations'."""
    early_stop: bool = False
    """Whether recomputation of a layer ends with the last value that backward needs."""
    loss_bytes: float = 10.0
    """Alive for each logit at the loss's fullest moment, where the loss is not fused."""
    weight_bytes: float = 2.0
    """Of a frozen weight as it is kept: QLoRA's are made wide before each product."""

    @property
    def local_len(self) -> float:
        """Tokens of one sequence on this rank, before tensor parallelism."""
        return self.seq_len / self.cp

    @property
    def tokens(self) -> float:
        """Of a micro-batch on this rank, whole in tp."""
        return self.batch * self.local_len

    @property
    def operand_bytes(self) -> float:
        """Kept of an input that only a large product reads."""
        return min(self.matmul_bytes, self.item_bytes) if self.keeps_narrow else self.item_bytes

    @property
    def keeps_narrow_copy(self) -> bool:
        """Whether a value that both a product and another kernel read is kept in both dtypes."""
        return self.operand_bytes < self.item_bytes

    @property
    def is_sequence_parallel(self) -> bool:
        return self.sequence_parallel and self.tp > 1

    @property
    def stream_tokens(self) -> float:
        """Tokens of the residual stream on this rank: 1/tp under sequence parallelism."""
        return self.tokens / self.tp if self.is_sequence_parallel else self.tokens

    def heads(self, num_heads: int) -> int:
        """Heads of the fullest tensor-parallel rank."""
        return math.ceil(num_heads / self.tp)

    def kv_heads(self, num_kv_heads: int) -> int:
        """Key-value heads of a rank; fewer than tp are replicated."""
        return max(1, math.ceil(num_kv_heads / self.tp))

    def columns(self, size: int) -> int:
        """Columns of the fullest tensor-parallel rank."""
        return math.ceil(size / self.tp)
