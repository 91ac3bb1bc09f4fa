"""Initial weights that do not depend on the layout.

A global matrix is drawn tile by tile, each tile by a generator of its own that is keyed by the
seed, the tensor's name and the tile's place. So a rank draws only the tiles that its part touches,
and every layout and precision starts from the same numbers (drawn in fp32, on the CPU).

Matrices are normal with the model's ``initializer_range``; those that write into the residual
stream are scaled by 1 / sqrt(2 x layers) (Radford et al. 2019, section 2.3). Norm weights are one,
biases zero.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from shardwright.runtime.parallel.shards import ParameterShard, shard_of
from shardwright.specs.model import ModelSpec

_TILE = (128, 1024)
"""Rows and columns drawn by one generator."""
_WRITES_RESIDUAL = ("attention.output.weight", "mlp.down.weight")


@torch.no_grad()
def initialize_(parameters: Iterable[nn.Parameter], model: ModelSpec, seed: int) -> None:
    """Give parameters with a ``shard`` their part of the model's initial weights."""
    residual_scale = 1 / math.sqrt(2 * model.decoder.num_layers)
    for parameter in parameters:
        shard = shard_of(parameter)
        if len(shard.global_shape) == 1:
            parameter.fill_(0.0 if shard.name.endswith(".bias") else 1.0)
            continue
        std = model.initializer_range
        if shard.name.endswith(_WRITES_RESIDUAL):
            std *= residual_scale
        _fill_normal(parameter, shard, std, seed)


def _fill_normal(parameter: Tensor, shard: ParameterShard, std: float, seed: int) -> None:
    for box in shard.boxes(0, shard.numel):
        local = parameter.view(-1)[box.flat_start : box.flat_start + box.numel].view(box.sizes)
        spans = [
            _tiles(offset, size, tile)
            for offset, size, tile in zip(box.offsets, box.sizes, _TILE, strict=True)
        ]
        for (row, rows, in_rows), (column, columns, in_columns) in itertools.product(*spans):
            tile = _draw_tile(shard, (row, column), seed).mul_(std)
            local[rows, columns] = tile[in_rows, in_columns].to(parameter)


def _tiles(offset: int, size: int, tile: int) -> list[tuple[int, slice, slice]]:
    """Tiles that [offset, offset + size) touches: number, place in the range, place in the tile."""
    return list(_iterate_tiles(offset, size, tile))


def _iterate_tiles(offset: int, size: int, tile: int) -> Iterator[tuple[int, slice, slice]]:
    for number in range(offset // tile, -(-(offset + size) // tile)):
        low, high = max(offset, number * tile), min(offset + size, (number + 1) * tile)
        first = number * tile
        yield number, slice(low - offset, high - offset), slice(low - first, high - first)


def _draw_tile(shard: ParameterShard, place: tuple[int, int], seed: int) -> Tensor:
    key = f"{seed}/{shard.name}/{place[0]}/{place[1]}"
    digest = hashlib.sha256(key.encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    shape = [
        min(tile, size - number * tile)
        for number, tile, size in zip(place, _TILE, shard.global_shape, strict=True)
    ]
    return torch.randn(shape, generator=generator)
