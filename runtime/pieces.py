"""Pieces of global tensors, and how `torch.distributed.checkpoint` saves and loads them.

A rank never stores "its" tensors: it stores pieces, each a box of a global tensor that has the
same name and shape under every layout. A checkpoint of any layout therefore loads into any other:
the reader intersects the boxes that it wants with the boxes that are there.
"""

from __future__ import annotations

import io
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from shardwright.specs import RunError

if TYPE_CHECKING:
    from shardwright.runtime.optimizer import StateEntry


@dataclass(frozen=True, slots=True)
class Piece:
    """One box of a global tensor, as a view of this rank's memory."""

    name: str
    """``kind/parameter``: ``weight/layers.3.mlp.down.weight``, ``exp_avg/...``."""
    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    """Where the box begins in the global tensor."""
    tensor: torch.Tensor
    """The box; loading writes into it."""

    @property
    def index(self) -> MetadataIndex:
        return MetadataIndex(self.name, self.offsets)


def kind_of(name: str) -> str:
    """``exp_avg`` of ``exp_avg/layers.3.mlp.down.weight``."""
    return name.partition("/")[0]


def pieces_of(entries: Iterable[StateEntry]) -> list[Piece]:
    """The pieces that ranges of flat buffers are: ``kind/name`` of each box of each range."""
    return [
        Piece(
            name=f"{entry.kind}/{entry.shard.name}",
            global_shape=entry.shard.global_shape,
            offsets=box.offsets,
            tensor=entry.tensor.narrow(0, box.flat_start - entry.start, box.numel).view(box.sizes),
        )
        for entry in entries
        for box in entry.shard.boxes(entry.start, entry.stop)
    ]


class PieceSavePlanner(SavePlanner):
    """Writes the pieces that this rank owns; over all ranks, every element exactly once."""

    def __init__(self, pieces: Iterable[Piece], num_elements: Mapping[str, int]) -> None:
        """``num_elements``: how many elements all tensors of each kind hold together."""
        self._pieces = {piece.index: piece for piece in pieces}
        self._num_elements = num_elements

    def set_up_planner(
        self,
        state_dict: Mapping[str, object],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Nothing to set up: the pieces are given at construction."""

    def create_local_plan(self) -> SavePlan:
        return SavePlan([_write_item(piece) for piece in self._pieces.values()])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Raises `RunError` where the ranks' pieces are not every element exactly once."""
        tensors: dict[str, TensorStorageMetadata] = {}
        for plan in all_plans:
            for item in plan.items:
                data = item.tensor_data
                assert data is not None
                entry = tensors.setdefault(
                    item.index.fqn, TensorStorageMetadata(data.properties, data.size, [])
                )
                entry.chunks.append(data.chunk)
        check_cover(tensors, self._num_elements)
        return all_plans, Metadata(dict(tensors))

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        return self._pieces[write_item.index].tensor.detach()


def _write_item(piece: Piece) -> WriteItem:
    chunk = ChunkStorageMetadata(torch.Size(piece.offsets), piece.tensor.shape)
    properties = TensorProperties.create_from_tensor(piece.tensor)
    return WriteItem(
        index=piece.index,
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(chunk, properties, torch.Size(piece.global_shape)),
    )


class PieceLoadPlanner(LoadPlanner):
    """Fills pieces from whatever boxes a checkpoint stores."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = {piece.index: piece for piece in pieces}
        self._metadata: Metadata | None = None

    def set_up_planner(
        self,
        state_dict: Mapping[str, object],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        self._metadata = metadata

    def create_local_plan(self) -> LoadPlan:
        """Raises `RunError` where the checkpoint lacks a tensor or any element of one."""
        assert self._metadata is not None
        stored = self._metadata.state_dict_metadata
        by_name: dict[str, list[Piece]] = defaultdict(list)
        for piece in self._pieces.values():
            by_name[piece.name].append(piece)
        items: list[ReadItem] = []
        for name, pieces in by_name.items():
            entry = stored.get(name)
            if not isinstance(entry, TensorStorageMetadata):
                raise RunError(f"the checkpoint has no tensor {name}")
            for piece in pieces:
                items += _read_items(piece, entry)
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise AssertionError("a checkpoint of pieces holds tensors alone")

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        box = self._pieces[read_item.dest_index].tensor.detach()
        for dim, (start, length) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            box = box.narrow(dim, start, length)
        return box

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Nothing to do: the tensor was written through a view of the piece."""


def _read_items(piece: Piece, stored: TensorStorageMetadata) -> list[ReadItem]:
    """What to read to fill a piece; `RunError` unless that is each of its elements once."""
    if (tuple(stored.size), stored.properties.dtype) != (piece.global_shape, piece.tensor.dtype):
        raise RunError(
            f"the checkpoint's tensor {piece.name} is {tuple(stored.size)}"
            f" {stored.properties.dtype}, but the model's is {piece.global_shape}"
            f" {piece.tensor.dtype}"
        )
    items = []
    found = 0
    wanted = (piece.offsets, tuple(piece.tensor.shape))
    for chunk in stored.chunks:
        common = intersection(wanted, (tuple(chunk.offsets), tuple(chunk.sizes)))
        if common is None:
            continue
        start, lengths = common
        found += math.prod(lengths)
        items.append(
            ReadItem(
                type=LoadItemType.TENSOR,
                dest_index=piece.index,
                dest_offsets=_relative(start, piece.offsets),
                storage_index=MetadataIndex(piece.name, chunk.offsets),
                storage_offsets=_relative(start, chunk.offsets),
                lengths=torch.Size(lengths),
            )
        )
    if found != piece.tensor.numel():
        raise RunError(
            f"the checkpoint has {found} of the {piece.tensor.numel()} elements of {piece.name}"
            f" from {piece.offsets}"
        )
    return items


Box = tuple[tuple[int, ...], tuple[int, ...]]
"""(offsets, lengths)."""


def intersection(one: Box, other: Box) -> Box | None:
    """The common box; None where nothing is common."""
    starts = tuple(map(max, one[0], other[0]))
    stops = tuple(
        min(a + length_a, b + length_b)
        for a, length_a, b, length_b in zip(*one, *other, strict=True)
    )
    lengths = tuple(stop - start for start, stop in zip(starts, stops, strict=True))
    return (starts, lengths) if all(length > 0 for length in lengths) else None


def _relative(position: Sequence[int], origin: Sequence[int]) -> torch.Size:
    return torch.Size(a - b for a, b in zip(position, origin, strict=True))


def check_cover(
    tensors: Mapping[str, TensorStorageMetadata], num_elements: Mapping[str, int]
) -> None:
    """Raise `RunError` unless the chunks are every element of every tensor exactly once.

    ``num_elements``: the elements that all tensors of each kind must have together.
    """
    totals: dict[str, int] = dict.fromkeys(num_elements, 0)
    for name, tensor in tensors.items():
        covered = sum(math.prod(chunk.sizes) for chunk in tensor.chunks)
        if covered != math.prod(tensor.size):
            raise RunError(
                f"the ranks hold {covered} of the {math.prod(tensor.size)} elements of {name}"
            )
        overlap = _overlap(tensor.chunks)
        if overlap is not None:
            raise RunError(f"two ranks hold element {overlap} of {name}")
        totals[kind_of(name)] = totals.get(kind_of(name), 0) + covered
    if totals != num_elements:
        raise RunError(f"the ranks hold {totals} elements, but the model has {dict(num_elements)}")


def _overlap(chunks: Sequence[ChunkStorageMetadata]) -> tuple[int, ...] | None:
    """An element that two chunks share: a sweep along the first dimension."""
    active: list[Box] = []
    for chunk in sorted(chunks, key=lambda chunk: tuple(chunk.offsets)):
        box = (tuple(chunk.offsets), tuple(chunk.sizes))
        active = [other for other in active if other[0][0] + other[1][0] > box[0][0]]
        for other in active:
            common = intersection(box, other)
            if common is not None:
                return common[0]
        active.append(box)
    return None
