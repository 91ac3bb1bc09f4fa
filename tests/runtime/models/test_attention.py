"""The core between the projections equals the formula written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from shardwright.cost_models.blocks.splits import HeadSplit
from shardwright.runtime.models.attention import (
    AttentionTables,
    attend,
    rotary_tables,
    rotate_,
    window_mask,
)
from shardwright.specs.model import RotaryPositions

SIZE, SEQ_LEN = 4, 7
CPU = torch.device("cpu")
GROUPED = HeadSplit(range(4), range(2), (0, 0, 1, 1), range(2))
UNEVEN = HeadSplit(range(3, 6), range(2), (0, 1, 1), range(1, 2))


def tables(*, rotary: bool, window: int | None, heads: HeadSplit) -> AttentionTables:
    cosine = sine = None
    if rotary:
        cosine, sine = rotary_tables(RotaryPositions(base=100.0), SIZE, SEQ_LEN, torch.float64, CPU)
    mask = None if window is None else window_mask(window, SEQ_LEN, torch.float64, CPU)
    index = None if heads.is_grouped else torch.tensor(heads.kv_of_query)
    return AttentionTables(cosine, sine, mask, index)


def by_formula(qkv: Tensor, heads: HeadSplit, with_tables: AttentionTables, window: int) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, head by head, with rotation as complex multiplication."""
    num_query, num_kv = len(heads.query), len(heads.kv)
    q, k, v = qkv.view(2, SEQ_LEN, -1, SIZE).split([num_query, num_kv, num_kv], 2)
    if with_tables.cosine is not None and with_tables.sine is not None:
        turn = torch.complex(with_tables.cosine, with_tables.sine)[:, None]
        q, k = (turned(x, turn) for x in (q, k))
    position = torch.arange(SEQ_LEN)
    distance = position[:, None] - position[None]
    hidden = (distance < 0) | (distance >= window)
    out = []
    for head, kv in enumerate(heads.kv_of_query):
        scores = q[:, :, head] @ k[:, :, kv].transpose(1, 2) / math.sqrt(SIZE)
        out.append(scores.masked_fill(hidden, -math.inf).softmax(-1) @ v[:, :, kv])
    return torch.cat(out, -1)


def turned(x: Tensor, turn: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    z = torch.complex(first, second) * turn
    return torch.cat([z.real, z.imag], -1)


@pytest.mark.parametrize("heads", [GROUPED, UNEVEN], ids=["grouped", "uneven"])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("window", [None, 3])
def test_values_and_gradients(heads: HeadSplit, rotary: bool, window: int | None) -> None:
    width = (len(heads.query) + 2 * len(heads.kv)) * SIZE
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(2, SEQ_LEN, width, dtype=torch.float64, generator=generator)
    qkv.requires_grad_()
    given = tables(rotary=rotary, window=window, heads=heads)
    ours = attend(qkv * 1, heads, given, True)
    expected = by_formula(qkv, heads, given, window or SEQ_LEN)
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)
    weights = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).view_as(ours)
    (mine,) = torch.autograd.grad((ours * weights).sum(), qkv)
    (theirs,) = torch.autograd.grad((expected * weights).sum(), qkv)
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_turning_back_undoes_turning() -> None:
    given = tables(rotary=True, window=None, heads=GROUPED)
    x = torch.randn(2, SEQ_LEN, 3, SIZE, dtype=torch.float64)
    again = x.clone()
    rotate_(again, given, backwards=False)
    assert not torch.allclose(again[:, 1:], x[:, 1:])
    rotate_(again, given, backwards=True)
    torch.testing.assert_close(again, x, rtol=1e-14, atol=1e-14)


def test_llama3_scaling_slows_only_slow_frequencies() -> None:
    plain = RotaryPositions(base=10000.0)
    scaled = RotaryPositions(
        base=10000.0, scaling="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_positions=64,
    )  # fmt: skip
    angles = [
        torch.atan2(sine, cosine)[1]  # the turn of one position, below pi
        for cosine, sine in (rotary_tables(r, 32, 2, torch.float64, CPU) for r in (plain, scaled))
    ]
    turns = 64 * angles[0] / (2 * math.pi)
    ratio = angles[0] / angles[1]
    torch.testing.assert_close(ratio[turns > 4], torch.ones_like(ratio[turns > 4]))
    torch.testing.assert_close(ratio[turns < 1], torch.full_like(ratio[turns < 1], 8.0))
    between = ratio[(turns > 1) & (turns < 4)]
    assert len(between) > 0
    assert bool(((between > 1) & (between < 8)).all())
