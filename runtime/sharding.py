"""Flat units: one mechanism for plain data parallelism and ZeRO 1, 2 and 3.

A unit's parameters lie one behind the other in one flat buffer, padded to a multiple of the shard
degree d; each parameter is a view of it. A second flat buffer accumulates gradients. The ZeRO
stages differ in what of the two a rank keeps, and when gradients are reduced:

    stage   weights    gradients   reduced                       the optimizer works on
    0       full       full        after the last micro-batch    everything (d = 1)
    1       full       full        after the last micro-batch    slice i of d
    2       full       slice i     after each micro-batch        slice i of d
    3       slice i    slice i     after each micro-batch        slice i of d

A reduction sums the gradients of ``tp_replicated`` parameters over tp, then reduce-scatters over
the d ranks that share a copy, then sums over the copies (after the last micro-batch). Reductions
are sums in the gradient dtype.

**Sharded weights** (ZeRO 3). The flat buffer keeps its storage object, resized to nothing between
uses: tensors saved for backward are views of that storage and are valid again when it is filled
again. Parameters get their views through ``.data``, which leaves them their own version counters,
so that filling the buffer is not taken for a modification of what autograd saved.

**When is a unit's backward over?** When the gradient of each of its parameters has arrived: a
gradient is complete only after every operation that read the parameter has run backward, so
neither will the gradients change nor are the weights needed any more. This holds whatever the
unit's inputs are: the embedding, which has no input gradient, and a tied weight, which two units
read, need no case of their own.

**Split backward** (`parallel.deferred`). The first half puts every gradient of a unit off; when it
has put off all of them, nothing reads the weights any more, and they are released. The second half
delivers them one after the other, all of a unit's before the next's, and they are reduced when the
last has arrived: so no micro-batch's gradients mix with another's that is between its halves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardwright.runtime import ledger
from shardwright.runtime.models import Unit
from shardwright.runtime.parallel.collectives import gather_flat, reduce_scatter_flat
from shardwright.runtime.parallel.deferred import take_gradients
from shardwright.runtime.parallel.dtypes import torch_dtype
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.parallel.shards import (
    ParameterShard,
    shard_of,
    sum_replicated_gradients,
)
from shardwright.runtime.stopwatch import during
from shardwright.specs import Layout, PrecisionDTypes


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """What of a stage's units is sharded, and over which ranks. A group of one rank is None."""

    zero: int
    degree: int
    """Ranks that share one copy of what is sharded."""
    index: int
    """The slice of this rank, of ``degree``."""
    shard_group: dist.ProcessGroup | None
    replica_group: dist.ProcessGroup | None
    """The ranks that hold the same slice of the other copies."""
    is_first_replica: bool
    tp_group: dist.ProcessGroup | None
    embedding_group: dist.ProcessGroup | None
    """The ranks whose stages both hold a tied weight."""
    holds_first_stage: bool

    @classmethod
    def of(cls, layout: Layout, groups: ParallelGroups) -> ShardPlan:
        """The plan of this rank; a collective call of every rank of the world."""
        degree, dp_rank = layout.zero_shard_degree, groups.coordinates.dp
        shard_group, replica_group = _split_dp(layout, groups)
        return cls(
            zero=layout.zero,
            degree=degree,
            index=dp_rank % degree,
            shard_group=shard_group,
            replica_group=replica_group,
            is_first_replica=dp_rank < degree,
            tp_group=groups.tp,
            embedding_group=groups.embedding,
            holds_first_stage=groups.coordinates.pp == layout.stages[0].rank,
        )

    @property
    def shards_weights(self) -> bool:
        return self.zero == 3 and self.degree > 1

    @property
    def shards_gradients(self) -> bool:
        return self.zero >= 2 and self.degree > 1


def _split_dp(
    layout: Layout, groups: ParallelGroups
) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
    """The dp ranks as (those that share one copy, those that hold the same slice of each copy).

    A copy lies on ``zero_shard_degree`` dp ranks next to each other.
    """
    degree = layout.zero_shard_degree
    if degree == 1:
        return None, groups.dp
    if degree == layout.dp:
        return groups.dp, None
    copies, slices = [], []
    for ranks in layout.world_size.groups("dp"):
        copies += [ranks[first : first + degree] for first in range(0, len(ranks), degree)]
        slices += [ranks[index::degree] for index in range(degree)]
    shard_group, _ = dist.new_subgroups_by_enumeration(copies)
    replica_group, _ = dist.new_subgroups_by_enumeration(slices)
    return shard_group, replica_group


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter and its elements [start, stop) of the flat buffer."""

    parameter: nn.Parameter
    start: int
    stop: int

    @property
    def shard(self) -> ParameterShard:
        return shard_of(self.parameter)


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A parameter's elements within a unit's slice."""

    shard: ParameterShard
    start: int
    stop: int
    """Elements [start, stop) of the flattened local parameter."""
    place: slice
    """Where they lie in the slice."""


class FlatUnit:
    """The weights and gradients of one unit.

    Attributes:
        weights: what this rank's optimizer updates: [padded / d], a view of the flat buffer except
            under ZeRO 3. In the parameter dtype.
        slice_range: the elements [start, stop) of the flat buffer that ``weights`` holds.
    """

    def __init__(
        self,
        name: str,
        parameters: Iterable[nn.Parameter],
        plan: ShardPlan,
        gradient_dtype: torch.dtype,
    ) -> None:
        self.name = name
        self.plan = plan
        self.slots = _lay_out(parameters)
        assert self.slots, f"unit {name} has no parameters"
        first = self.slots[0].parameter
        self.numel = self.slots[-1].stop
        self.padded_numel = plan.degree * math.ceil(self.numel / plan.degree)
        shard_numel = self.padded_numel // plan.degree
        self.slice_range = (plan.index * shard_numel, (plan.index + 1) * shard_numel)
        self._full = torch.zeros(self.padded_numel, dtype=first.dtype, device=first.device)
        self._move_into_flat_buffer()
        self.weights = self._full[slice(*self.slice_range)]
        if plan.shards_weights:
            self.weights = self.weights.clone()
            self._resize(0)
        kept = shard_numel if plan.shards_gradients else self.padded_numel
        self._accumulator = torch.zeros(kept, dtype=gradient_dtype, device=first.device)
        self._arriving: Tensor | None = None
        self._num_arrived = self._num_put_off = 0

    def _move_into_flat_buffer(self) -> None:
        for slot in self.slots:
            view = self._full[slot.start : slot.stop].view(slot.parameter.shape)
            view.copy_(slot.parameter.detach())
            slot.parameter.data = view
            take_gradients(slot.parameter, _SlotSink(self, slot))

    # Weights

    @property
    def weight_bytes(self) -> int:
        """What weights take up on this rank at this moment."""
        own = self.weights.nbytes if self.plan.shards_weights else 0
        return self._full.untyped_storage().nbytes() + own

    @property
    def gradient_bytes(self) -> int:
        """What the accumulated gradients take up."""
        return self._accumulator.nbytes

    @property
    def is_gathered(self) -> bool:
        return self._full.untyped_storage().nbytes() > 0

    def gather(self) -> None:
        """Make all weights readable; nothing to do where they are already."""
        if not self.is_gathered:
            self._resize(self.padded_numel * self._full.element_size())
            gather_flat(self._full, self.weights, self.plan.shard_group)

    def release(self) -> None:
        """Forget the weights of other ranks (ZeRO 3)."""
        if self.plan.shards_weights:
            self._resize(0)

    def publish_weights(self) -> None:
        """After ``weights`` changed: give them to all who keep full copies (ZeRO 1, 2)."""
        if self.plan.degree > 1 and not self.plan.shards_weights:
            gather_flat(self._full, self.weights, self.plan.shard_group)

    def _resize(self, num_bytes: int) -> None:
        self._full.untyped_storage().resize_(num_bytes)
        ledger.note_storage_resized(self._full)

    def read_by(self, modules: Sequence[nn.Module]) -> None:
        """Gather and release around the forward and before the backward of the modules that read
        the weights, in the order in which they run; between the first and last they stay gathered.
        """
        if not self.plan.shards_weights:
            return
        modules[0].register_forward_pre_hook(lambda *_: self.gather())
        modules[-1].register_forward_hook(self._after_forward)

    def _after_forward(self, module: nn.Module, inputs: object, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda _: self.gather())
        self.release()

    # Gradients

    @property
    def gradients(self) -> Tensor:
        """The slice of the gradients that belongs to ``weights``; complete after `reduce`."""
        if self.plan.shards_gradients:
            return self._accumulator
        return self._accumulator[slice(*self.slice_range)]

    def zero_gradients(self) -> None:
        self._accumulator.zero_()

    def add_gradient(self, slot: Slot, gradient: Tensor) -> None:
        """Add one parameter's gradient to the buffer."""
        buffer = self._buffer_of_micro_batch()
        buffer[slot.start : slot.stop].view_as(gradient).add_(gradient)
        self._num_arrived += 1
        if self._num_arrived == len(self.slots):
            self._end_backward()

    def put_gradient_off(self) -> None:
        """One parameter's gradient comes in the second half of a split backward."""
        self._num_put_off += 1
        if self._num_put_off == len(self.slots):
            self._num_put_off = 0
            self.release()

    def _buffer_of_micro_batch(self) -> Tensor:
        if not self.plan.shards_gradients:
            return self._accumulator
        if self._arriving is None:
            self._arriving = self._accumulator.new_zeros(self.padded_numel)
        return self._arriving

    def _end_backward(self) -> None:
        self._num_arrived = 0
        if self._arriving is not None:
            self.release()
            self._sum_over_tp(self._arriving)
            own = torch.empty_like(self._accumulator)
            reduce_scatter_flat(own, self._arriving, self.plan.shard_group)
            self._arriving = None
            self._accumulator += own

    def reduce(self) -> None:
        """After the step's last backward: bring what is not reduced yet to its sum over ranks."""
        is_over = self._num_arrived == self._num_put_off == 0
        assert is_over, f"{self.name}: a backward is not over"
        plan = self.plan
        if not plan.shards_gradients:
            self._sum_over_tp(self._accumulator)
            if plan.degree > 1:
                reduce_scatter_flat(self.gradients, self._accumulator, plan.shard_group)
        with during("dp_comm"):
            if plan.replica_group is not None:
                dist.all_reduce(self.gradients, group=plan.replica_group)
            if self.is_tied and plan.embedding_group is not None:
                dist.all_reduce(self.gradients, group=plan.embedding_group)

    def _sum_over_tp(self, full_gradients: Tensor) -> None:
        with during("dp_comm"):
            sum_replicated_gradients(
                [(slot.shard, full_gradients[slot.start : slot.stop]) for slot in self.slots],
                self.plan.tp_group,
            )

    # Who holds what

    @property
    def is_tied(self) -> bool:
        """Whether another pipeline stage holds the same weights."""
        return any(slot.shard.tied for slot in self.slots)

    def held_parts(self, *, owned_only: bool = False) -> Iterator[HeldPart]:
        """What lies in this rank's slice, parameter by parameter, padding left out.

        ``owned_only``: each element of the model on exactly one rank of the world: not where
        another dp, tp or pp rank that holds it too comes first.
        """
        if owned_only and not self._is_accountable:
            return
        for slot in self.slots:
            ranges = slot.shard.owned_ranges() if owned_only else [(0, slot.stop - slot.start)]
            for start, stop in ranges:
                yield from self._held(slot, start, stop)

    @property
    def _is_accountable(self) -> bool:
        return self.plan.is_first_replica and (self.plan.holds_first_stage or not self.is_tied)

    def _held(self, slot: Slot, start: int, stop: int) -> Iterator[HeldPart]:
        first, last = self.slice_range
        low, high = max(slot.start + start, first), min(slot.start + stop, last)
        if low < high:
            place = slice(low - first, high - first)
            yield HeldPart(slot.shard, low - slot.start, high - slot.start, place)


@dataclass(frozen=True, slots=True)
class _SlotSink:
    """Where the gradients of one parameter go (`parallel.deferred.GradientSink`)."""

    unit: FlatUnit
    slot: Slot

    def add(self, gradient: Tensor) -> None:
        self.unit.add_gradient(self.slot, gradient)

    def put_off(self) -> None:
        self.unit.put_gradient_off()


def flatten_units(
    units: Iterable[Unit], plan: ShardPlan, dtypes: PrecisionDTypes
) -> tuple[FlatUnit, ...]:
    """Take over the parameters of units, in their order."""
    flat_units = []
    for unit in units:
        flat = FlatUnit(unit.unit_name, unit.parameters(), plan, torch_dtype(dtypes.gradient))
        for readers in unit.readers:
            flat.read_by(readers)
        flat_units.append(flat)
    return tuple(flat_units)


def _lay_out(parameters: Iterable[nn.Parameter]) -> tuple[Slot, ...]:
    slots: list[Slot] = []
    for parameter in parameters:
        start = slots[-1].stop if slots else 0
        slots.append(Slot(parameter, start, start + parameter.numel()))
    return tuple(slots)
