"""The vocabulary in which blocks describe what one rank does for one micro-batch.

Operations are listed in the order in which the runtime performs them. `Elementwise` operations
are named after what runs (``rms_norm``, ``rope``, ``swiglu``, ``cross_entropy``, ``adamw`` ...), so
that a profile which measured that very operation can price it, and any other by its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardwright.specs.training import DTYPE_BYTES, DType

CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"
]
Axis = Literal["tp", "cp", "dp", "pp", "ep", "etp", "edp", "embedding", "world"]


@dataclass(frozen=True, slots=True)
class Matmul:
    """``out[m, n] = a[m, k] @ b[k, n]``, ``batch`` times."""

    name: str
    m: int
    n: int
    k: int
    dtype: DType
    batch: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention core of ``heads`` heads, without its projections.

    ``flops`` counts every product that the kernel performs by its registered formula: forward two,
    backward five (flash: scores again) products of 2 x seq_q x seq_kv x head_dim per head, the
    whole square also where ``causal``.
    """

    name: str
    batch: int
    heads: int
    seq_q: int
    seq_kv: int
    head_dim: int
    causal: bool
    backward: bool
    dtype: DType

    @property
    def flops(self) -> int:
        products = 5 if self.backward else 2
        return products * 2 * self.batch * self.heads * self.seq_q * self.seq_kv * self.head_dim


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Anything bound by memory: bytes read plus bytes written, in ``kernels`` launches."""

    name: str
    num_bytes: int
    dtype: DType
    kernels: int = 1


@dataclass(frozen=True, slots=True)
class Collective:
    """One call of a collective over the group of ``axis``; ``input_bytes`` per rank of the call.

    ``input_bytes`` is the size of the tensor handed in: the whole tensor for all_reduce and
    reduce_scatter, the own shard for all_gather, the message for send_recv.
    """

    name: str
    kind: CollectiveKind
    axis: Axis
    input_bytes: int
    dtype: DType


Operation = Matmul | Attention | Elementwise | Collective


@dataclass(frozen=True, slots=True)
class ParameterBooks:
    """One parameter tensor of one rank."""

    name: str
    """Name within the layer (``attention.qkv.weight``), so that equal layers share their books;
    `UnitBooks.parameters` has global names (``layers.3.attention.qkv.weight``)."""
    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    tp_replicated: bool
    """Held whole, or in part, by several tp ranks, whose gradients must be summed over tp."""
    weight_decay: bool

    @property
    def numel(self) -> int:
        count = 1
        for size in self.local_shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A storage that lives from a block's forward to its backward."""

    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class DeferredGradient:
    """Weight gradients of one autograd function, put off to the second half of a split backward.

    ``held_bytes`` and ``stream_bytes`` live until then: its input and the gradient of its output.
    """

    held_bytes: int
    """Without ``stream_bytes``."""
    transient_bytes: int
    """Most alive at once while they are computed, themselves included."""
    gradient_bytes: int
    """Of the gradients that it computes; those that it holds are not counted again."""
    stream_bytes: int = 0
    """The gradient of the residual stream, where that is held and waits for the norm anyway."""

    @property
    def all_held_bytes(self) -> int:
        return self.held_bytes + self.stream_bytes


@dataclass(frozen=True, slots=True)
class BlockBooks:
    """What one block does on one rank for one micro-batch, and what it keeps.

    ``saved`` includes the block's output, which the next block keeps, and not its input. Transient
    bytes: the most that is alive at once inside the pass beyond what was alive before it (forward:
    inputs; backward: all that is saved, and the gradient of the output) and apart from ``saved``.
    A norm's backward counts the gradient of the residual stream, which waits for it, as its own.
    """

    name: str
    forward: tuple[Operation, ...]
    backward_input: tuple[Operation, ...]
    backward_weight: tuple[Operation, ...]
    parameters: tuple[ParameterBooks, ...]
    saved: tuple[SavedTensor, ...]
    output_bytes: int
    forward_transient_bytes: int
    backward_transient_bytes: int
    input_transient_bytes: int
    """As ``backward_transient_bytes``, in the first half of a split backward."""
    deferred: tuple[DeferredGradient, ...]
    """What the second half computes, in order."""
    unsaved_forward_bytes: int
    """Most alive at once in a forward that keeps nothing (full recompute): input, unless that is
    the residual stream, output and all between."""

    @property
    def saved_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.saved)

    @property
    def held_bytes(self) -> int:
        """Held for the second half of a split backward, without gradients of the stream."""
        return sum(one.held_bytes for one in self.deferred)

    @property
    def stream_bytes(self) -> int:
        """Gradients of the stream that it holds for the second half."""
        return sum(one.stream_bytes for one in self.deferred)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel for parameter in self.parameters)


def dtype_bytes(dtype: DType) -> int:
    """Whole bytes of an element; fp4 has none and must be counted in pairs."""
    size = DTYPE_BYTES[dtype]
    assert size >= 1, dtype
    return int(size)
