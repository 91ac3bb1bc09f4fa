"""`ParameterShard`: which part of which global tensor a local parameter is.

Attached to every parameter as ``parameter.shard``. A local tensor is the global one cut along one
dimension into segments, which lie one after another in the local tensor. Checkpoints ask for the
rectangular boxes of a flat range (a ZeRO shard); gradient reduction asks for what is shared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

Segment = tuple[int, int]
"""(start in the global tensor, length) along the cut dimension."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of the global tensor that lies contiguously in the flat local tensor."""

    flat_start: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)


@dataclass(frozen=True, slots=True)
class ParameterShard:
    """The place of one rank's parameter in its global tensor.

    A tensor held whole has ``dim`` None and one segment, its whole first dimension.
    """

    name: str
    """Global name: ``layers.3.attention.qkv.weight``."""
    global_shape: tuple[int, ...]
    dim: int | None
    segments: tuple[Segment, ...]
    tp_replicated: bool
    """Gradients must be summed over tp, of the whole tensor or of its ``shared`` part."""
    weight_decay: bool
    tied: bool = False
    """Also held by another pipeline stage."""
    shared: Segment | None = None
    """Global rows that several tp ranks hold; null where the whole tensor is shared, or nothing."""
    owned: tuple[Segment, ...] | None = None
    """The segments that this rank alone accounts for; null = all of them, () = none."""

    def __post_init__(self) -> None:
        cut = self.dim or 0
        assert cut == 0 or len(self.segments) == 1, self
        assert all(start >= 0 and start + length <= self.global_shape[cut]
                   for start, length in self.segments), self  # fmt: skip

    @property
    def local_shape(self) -> tuple[int, ...]:
        shape = list(self.global_shape)
        shape[self.dim or 0] = sum(length for _, length in self.segments)
        return tuple(shape)

    @property
    def numel(self) -> int:
        return math.prod(self.local_shape)

    def take(self, full: torch.Tensor) -> torch.Tensor:
        """This rank's part (a copy or a view) of the whole tensor.

        Raises:
            ValueError: ``full`` has not the global shape.
        """
        if tuple(full.shape) != self.global_shape:
            raise ValueError(f"{self.name}: {tuple(full.shape)} is not {self.global_shape}")
        if self.dim is None:
            return full
        parts = [full.narrow(self.dim, start, length) for start, length in self.segments]
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)

    def put(self, local: torch.Tensor, full: torch.Tensor) -> None:
        """Write this rank's part into the whole tensor."""
        cut, done = self.dim or 0, 0
        for start, length in self.segments:
            full.narrow(cut, start, length).copy_(local.narrow(cut, done, length))
            done += length

    def boxes(self, start: int, stop: int) -> Iterator[Box]:
        """The global boxes, in flat order, that make up elements [start, stop) of the flat local
        tensor: at most a head, a body and a tail per dimension and segment."""
        flat = start
        for offsets, sizes in _flat_boxes(self.local_shape, start, stop):
            for box_offsets, box_sizes in self._to_global(offsets, sizes):
                yield Box(flat, box_offsets, box_sizes)
                flat += math.prod(box_sizes)

    def owned_ranges(self) -> list[tuple[int, int]]:
        """The flat local ranges [start, stop) that this rank accounts for in sums over tp.

        Over all tp ranks they cover each global element once: for gradient norms and counts.
        """
        if self.owned is None:
            return [(0, self.numel)]
        row = self.numel // max(1, self.local_shape[0])
        ranges = []
        for start, length in self.owned:
            local = self._local_row(start)
            ranges.append((local * row, (local + length) * row))
        return ranges

    def shared_rows(self) -> Iterator[tuple[int, int, int]]:
        """(local start, start within ``shared``, length) of each run of rows in ``shared``."""
        assert self.shared is not None
        first, count = self.shared
        local = 0
        for start, length in self.segments:
            low, high = max(start, first), min(start + length, first + count)
            if low < high:
                yield local + low - start, low - first, high - low
            local += length

    def _local_row(self, global_row: int) -> int:
        local = 0
        for start, length in self.segments:
            if start <= global_row < start + length:
                return local + global_row - start
            local += length
        raise AssertionError(f"{self.name}: row {global_row} is not held")

    def _to_global(
        self, offsets: tuple[int, ...], sizes: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        cut, local = self.dim or 0, 0
        for start, length in self.segments:
            low = max(offsets[cut], local)
            high = min(offsets[cut] + sizes[cut], local + length)
            if low < high:
                yield (
                    (*offsets[:cut], start + low - local, *offsets[cut + 1 :]),
                    (*sizes[:cut], high - low, *sizes[cut + 1 :]),
                )
            local += length


def _flat_boxes(
    shape: tuple[int, ...], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Boxes (offsets, sizes) of a row-major tensor that make up its flat range, in order."""
    if start >= stop:
        return
    if len(shape) == 1:
        yield (start,), (stop - start,)
        return
    row = math.prod(shape[1:])
    first_full, last_full = -(-start // row), stop // row
    if first_full > last_full:  # within one row
        yield from _in_row(shape, last_full, start, stop)
        return
    if start < first_full * row:
        yield from _in_row(shape, first_full - 1, start, first_full * row)
    if first_full < last_full:
        zeros = (0,) * (len(shape) - 1)
        yield (first_full, *zeros), (last_full - first_full, *shape[1:])
    yield from _in_row(shape, last_full, last_full * row, stop)


def _in_row(
    shape: tuple[int, ...], row: int, start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    base = row * math.prod(shape[1:])
    for offsets, sizes in _flat_boxes(shape[1:], start - base, stop - base):
        yield (row, *offsets), (1, *sizes)


def shard_of(parameter: torch.Tensor) -> ParameterShard:
    """The shard attached to a parameter."""
    shard = parameter.shard  # type: ignore[attr-defined]
    assert isinstance(shard, ParameterShard)
    return shard


def sum_replicated_gradients(
    gradients: Sequence[tuple[ParameterShard, torch.Tensor]], group: dist.ProcessGroup | None
) -> None:
    """Sum over tp, in place and in one all_reduce, what tp ranks share of these gradients.

    Each ``tp_replicated`` gradient adds its whole, or the global rows of its ``shared`` part (zeros
    where this rank holds none), to one buffer; other gradients are left alone.
    """
    replicated = [(shard, gradient) for shard, gradient in gradients if shard.tp_replicated]
    if group is None or not replicated:
        return
    sizes = [replicated_numel(shard) for shard, _ in replicated]
    buffer = replicated[0][1].new_zeros(sum(sizes))
    parts = buffer.split(sizes)
    for (shard, gradient), part in zip(replicated, parts, strict=True):
        for local, shared in _shared_views(shard, gradient, part):
            shared.copy_(local)
    dist.all_reduce(buffer, group=group)
    for (shard, gradient), part in zip(replicated, parts, strict=True):
        for local, shared in _shared_views(shard, gradient, part):
            local.copy_(shared)


def replicated_numel(shard: ParameterShard) -> int:
    """Elements that one parameter adds to the buffer of `sum_replicated_gradients`."""
    if shard.shared is None:
        return shard.numel
    return shard.shared[1] * math.prod(shard.global_shape[1:])


def _shared_views(
    shard: ParameterShard, gradient: torch.Tensor, part: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of views: rows of the local gradient, and their place in the buffer."""
    local = gradient.view(shard.local_shape)
    if shard.shared is None:
        yield local, part.view(shard.local_shape)
        return
    rows = part.view(shard.shared[1], *shard.global_shape[1:])
    for local_start, shared_start, length in shard.shared_rows():
        yield local.narrow(0, local_start, length), rows.narrow(0, shared_start, length)
