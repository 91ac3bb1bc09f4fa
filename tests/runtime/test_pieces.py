"""Boxes meet boxes: whatever cut was saved, any other cut is filled, each element once."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from shardwright.runtime.pieces import (
    Piece,
    PieceLoadPlanner,
    PieceSavePlanner,
    check_cover,
    intersection,
)
from shardwright.specs import RunError


def cut(name: str, tensor: torch.Tensor, *cuts: list[int]) -> list[Piece]:
    """The pieces of a tensor cut at the given positions of each dimension."""
    edges = [[0, *positions, size] for positions, size in zip(cuts, tensor.shape, strict=True)]
    pieces = []
    for spans in itertools.product(*(list(itertools.pairwise(edge)) for edge in edges)):
        view = tensor[tuple(slice(start, stop) for start, stop in spans)]
        offsets = tuple(start for start, _ in spans)
        pieces.append(Piece(name, tuple(tensor.shape), offsets, view))
    return pieces


def _stored(*boxes: tuple[tuple[int, ...], tuple[int, ...]]) -> dict[str, TensorStorageMetadata]:
    chunks = [ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s in boxes]
    return {"weight/w": TensorStorageMetadata(TensorProperties(), torch.Size((4, 6)), chunks)}


def test_intersection() -> None:
    assert intersection(((0, 2), (3, 4)), ((1, 0), (5, 3))) == ((1, 2), (2, 1))
    assert intersection(((0,), (3,)), ((3,), (1,))) is None


def test_every_plan_of_reads_fills_each_element_once() -> None:
    source = torch.arange(24.0).view(4, 6)
    saved = cut("weight/w", source, [1], [2, 5])
    planner = PieceSavePlanner(saved, {"weight": 24})
    _, metadata = planner.create_global_plan([planner.create_local_plan()])
    target = torch.full((4, 6), -1.0)
    loader = PieceLoadPlanner(cut("weight/w", target, [2, 3], [3]))
    loader.set_up_planner({}, metadata)
    stored = {piece.offsets: piece.tensor for piece in saved}
    times_written = torch.zeros(4, 6)
    for item in loader.create_local_plan().items:
        box = stored[tuple(item.storage_index.offset or ())]
        for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            box = box.narrow(dim, start, length)
        loader.resolve_tensor(item).copy_(box)
        spans = [
            slice(origin + start, origin + start + length)
            for origin, start, length in zip(
                item.dest_index.offset or (), item.dest_offsets, item.lengths, strict=True
            )
        ]
        times_written[tuple(spans)] += 1
    assert torch.equal(target, source)
    assert torch.equal(times_written, torch.ones(4, 6))


@pytest.mark.parametrize(
    ("boxes", "count", "problem"),
    [
        pytest.param([((0, 0), (2, 6))], 24, "hold 12 of the 24 elements of weight/w", id="gap"),
        pytest.param(
            [((0, 0), (3, 6)), ((3, 0), (1, 3)), ((2, 3), (1, 3))],
            24,
            r"two ranks hold element \(2, 3\) of weight/w",
            id="overlap-and-gap",
        ),
        pytest.param([((0, 0), (4, 6))], 25, "but the model has {'weight': 25}", id="missing"),
    ],
)
def test_incomplete_cover_is_refused(
    boxes: list[tuple[tuple[int, ...], tuple[int, ...]]], count: int, problem: str
) -> None:
    with pytest.raises(RunError, match=problem):
        check_cover(_stored(*boxes), {"weight": count})


def test_complete_cover_is_accepted() -> None:
    check_cover(_stored(((0, 0), (4, 2)), ((0, 2), (3, 4)), ((3, 2), (1, 4))), {"weight": 24})


@pytest.mark.parametrize(
    ("piece", "problem"),
    [
        pytest.param(
            Piece("weight/other", (4, 6), (0, 0), torch.zeros(4, 6)),
            "has no tensor weight/other",
            id="unknown",
        ),
        pytest.param(
            Piece("weight/w", (4, 7), (0, 0), torch.zeros(4, 7)),
            r"weight/w is \(4, 6\)",
            id="shape",
        ),
        pytest.param(
            Piece("weight/w", (4, 6), (0, 0), torch.zeros(4, 6, dtype=torch.bfloat16)),
            "torch.float32, but the model's is",
            id="dtype",
        ),
        pytest.param(
            Piece("weight/w", (4, 6), (1, 0), torch.zeros(3, 6)),
            "has 12 of the 18 elements of weight/w",
            id="hole",
        ),
    ],
)
def test_what_a_checkpoint_lacks_is_named(piece: Piece, problem: str) -> None:
    loader = PieceLoadPlanner([piece])
    loader.set_up_planner({}, Metadata(dict(_stored(((0, 0), (3, 6))))))
    with pytest.raises(RunError, match=problem):
        loader.create_local_plan()
