"""The vocabulary of `stacks`: operations, and the parts of a layer that are made of them.

A *part* is what selective recomputation can name: a norm, the attention core, an activation. Parts
of a layer run in order; the backward pass runs them in reverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
Axis = Literal["tp", "cp", "ep", "etp"]
Width = Literal["matmul", "compute"]
"""In which dtype a product runs: the precision's matmul dtype (fp8, ...), or that of the
activations (bf16) where it stays in the wider one."""


class Product(NamedTuple):
    """``batch`` matrix products of [m, k] and [k, n]."""

    m: float
    n: float
    k: float
    batch: float = 1
    width: Width = "matmul"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch


class FlashAttention(NamedTuple):
    """The fused kernel that never stores the scores."""

    batch: float
    heads: float
    seq_q: float
    seq_kv: float
    qk_head_dim: int
    v_head_dim: int
    visible: float
    """Share of the score matrix that is computed: 1, about a half where causal, less in windows."""
    backward: bool

    @property
    def flops(self) -> float:
        """Scores and weighted sum; backward has five products for the forward's two."""
        square = self.batch * self.heads * self.seq_q * self.seq_kv * self.visible
        forward = 2.0 * square * (self.qk_head_dim + self.v_head_dim)
        if not self.backward:
            return forward
        return 2.0 * square * (3 * self.qk_head_dim + 2 * self.v_head_dim)


class Traffic(NamedTuple):
    """Element-wise work: bytes read and written by fused kernels."""

    num_bytes: float
    kernels: float = 1


class Message(NamedTuple):
    """One collective on the critical path of its part, unless ``hides_behind`` something."""

    kind: CollectiveKind
    num_bytes: float
    """Input bytes per rank."""
    axis: Axis
    overlaps: bool = False
    """It can run beside the part's own computation."""
    copies: int = 1
    """Of a dispatch: how many experts each token goes to."""
    most_domains: int = 0
    """Of a dispatch: at most so many link domains for one token; 0 = no limit."""


Operation = Product | FlashAttention | Traffic | Message


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a layer on one rank, for one micro-batch."""

    name: str
    """A `RecomputeModule` where recomputation can name it."""
    forward: tuple[Operation, ...] = ()
    backward_input: tuple[Operation, ...] = ()
    backward_weight: tuple[Operation, ...] = ()
    internal_bytes: float = 0.0
    """Kept for its own backward, besides its input and its output."""
    output_bytes: float = 0.0
    """Its output, where a later part keeps it."""
    drops_output: bool = False
    """Whether recomputing it also frees its output (norms, activations), not only internals."""
    scratch_bytes: float = 0.0
    """The largest value that only lives inside it: scores of attention that is not fused."""
    parameters: float = 0.0
    """On this rank, without experts."""
    expert_parameters: float = 0.0
    """On this rank, of routed experts."""
    adapters: float = 0.0
    """Trainable adapter parameters on this rank."""
    table_sides: float = 0.0
    """Rows and columns of a table that is looked up, whose parameters are most of its own."""

    @property
    def saved_bytes(self) -> float:
        return self.internal_bytes + self.output_bytes
