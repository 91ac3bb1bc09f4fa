"""Steps: the runtime's autograd functions, from which blocks are put together.

A step keeps tensors and one output, takes the gradient of that output and gives the gradient of its
input. The walks below follow what is alive while a chain of steps runs.

    B micro-batch, T tokens, D hidden, t positions per rank (T, or ceil(T / tp) with sp)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.cost_models.blocks.operations import (
    BlockBooks,
    DeferredGradient,
    Operation,
    ParameterBooks,
    SavedTensor,
    dtype_bytes,
)
from shardwright.cost_models.blocks.splits import sequence_shard_len
from shardwright.specs.training import DType


@dataclass(frozen=True, slots=True)
class Context:
    """What of layout and training a block's books depend on; hashable, so books can be shared."""

    batch: int
    seq_len: int
    tp: int
    tp_rank: int
    sequence_parallel: bool
    dtype: DType
    gradient_dtype: DType

    @property
    def shards_sequence(self) -> bool:
        return self.sequence_parallel and self.tp > 1

    @property
    def local_len(self) -> int:
        """t: positions per rank, padding included."""
        return sequence_shard_len(self.seq_len, self.tp) if self.shards_sequence else self.seq_len

    @property
    def tokens(self) -> int:
        """B x T."""
        return self.batch * self.seq_len

    @property
    def local_tokens(self) -> int:
        """B x t."""
        return self.batch * self.local_len

    @property
    def is_rank_major(self) -> bool:
        """Whether a gathered sequence needs no copy to be in order, nor one to be scattered."""
        return self.batch == 1 and self.local_len * self.tp == self.seq_len

    @property
    def item(self) -> int:
        """Bytes of an element of weights and activations."""
        return dtype_bytes(self.dtype)

    @property
    def wide_dtype(self) -> DType:
        return "fp64" if self.dtype == "fp64" else "fp32"

    @property
    def wide(self) -> int:
        """Bytes of an element of what is computed in at least fp32."""
        return dtype_bytes(self.wide_dtype)

    @property
    def is_promoted(self) -> bool:
        """Whether wide tensors are copies, rather than the tensors themselves."""
        return self.wide != self.item


@dataclass(frozen=True, slots=True)
class Step:
    """One autograd function. Transient bytes are those of `BlockBooks`."""

    forward: tuple[Operation, ...]
    backward_input: tuple[Operation, ...]
    backward_weight: tuple[Operation, ...] = ()
    parameters: tuple[ParameterBooks, ...] = ()
    kept: tuple[SavedTensor, ...] = ()
    """Besides the output, which the next step keeps."""
    output_bytes: int = 0
    forward_transient_bytes: int = 0
    backward_transient_bytes: int = 0
    input_transient_bytes: int | None = None
    """The same in the first half of a split backward; null where nothing is put off."""
    deferred: tuple[DeferredGradient, ...] = ()
    """What the second half computes."""

    @property
    def kept_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.kept)


def chain(
    name: str, steps: Sequence[Step], *, input_bytes: int, adds_to_stream: bool = False
) -> BlockBooks:
    """The books of a block that runs ``steps`` in order.

    Args:
        input_bytes: of the block's input, where it dies with a forward that keeps nothing.
        adds_to_stream: the output is the residual stream, whose gradient waits for the norm.
    """
    saved: list[SavedTensor] = []
    for index, step in enumerate(steps):
        saved += step.kept
        name_of_output = "output" if index == len(steps) - 1 else f"output of step {index}"
        saved.append(SavedTensor(name_of_output, step.output_bytes))
    total = sum(tensor.num_bytes for tensor in saved)
    waiting = steps[-1].output_bytes * adds_to_stream
    return BlockBooks(
        name=name,
        forward=tuple(op for step in steps for op in step.forward),
        backward_input=tuple(op for step in reversed(steps) for op in step.backward_input),
        backward_weight=tuple(op for step in reversed(steps) for op in step.backward_weight),
        parameters=tuple(parameter for step in steps for parameter in step.parameters),
        saved=tuple(saved),
        output_bytes=steps[-1].output_bytes,
        forward_transient_bytes=_forward_peak(steps) - total,
        backward_transient_bytes=_backward_peak(steps, waiting),
        input_transient_bytes=_input_peak(steps, waiting),
        deferred=tuple(one for step in reversed(steps) for one in step.deferred),
        unsaved_forward_bytes=_unsaved_forward_peak(steps, input_bytes),
    )


def _forward_peak(steps: Sequence[Step]) -> int:
    alive = peak = 0
    for step in steps:
        alive += step.kept_bytes + step.output_bytes
        peak = max(peak, alive + step.forward_transient_bytes)
    return peak


def _unsaved_forward_peak(steps: Sequence[Step], input_bytes: int) -> int:
    """As `_forward_peak` where each step's tensors but its output die with it."""
    peak, alive = 0, input_bytes
    for step in steps:
        own = step.kept_bytes + step.output_bytes + step.forward_transient_bytes
        peak = max(peak, alive + own)
        alive = step.output_bytes
    return peak


def _backward_peak(steps: Sequence[Step], waiting: int) -> int:
    """Most bytes alive in backward beyond what was before (all kept, all outputs but the last, and
    the last output's gradient, of which ``waiting`` bytes are not freed)."""
    peak, change = 0, 0
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        peak = max(peak, change + step.backward_transient_bytes)
        change -= step.kept_bytes
        # The output's gradient dies, that of the input (the output of the step before) lives, and
        # the input, which this step kept, dies with it: the two cancel.
        change -= step.output_bytes
        if index == len(steps) - 1:
            change += waiting
    return peak


def _input_peak(steps: Sequence[Step], waiting: int) -> int:
    """As `_backward_peak` in the first half of a split backward: a step whose weight gradient is
    put off frees neither its input nor the gradient of its output."""
    peak, change = 0, 0
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        transient = step.input_transient_bytes
        peak = max(
            peak, change + (step.backward_transient_bytes if transient is None else transient)
        )
        change -= step.kept_bytes + step.output_bytes
        change += sum(one.held_bytes for one in step.deferred)
        if index == len(steps) - 1:
            change += waiting
    return peak
