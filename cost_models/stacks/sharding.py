"""How one layer is cut over ranks, and with which kernels it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

CpKind = Literal["ring", "all_to_all", "all_gather"]


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
    dropout: bool = False
    """Whether dropout runs after attention scores, attention and MLP."""
    adapter_rank: int | None = None
    frozen: bool = False
    """Weights need no gradients (LoRA's base weights, a frozen tower)."""
    input_needs_gradient: bool = True

    @property
    def local_len(self) -> float:
        """Tokens of one sequence on this rank, before tensor parallelism."""
        return self.seq_len / self.cp

    @property
    def tokens(self) -> float:
        """Of a micro-batch on this rank, whole in tp."""
        return self.batch * self.local_len

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
