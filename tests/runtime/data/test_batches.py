"""The batches of a step are the same samples in the same order under every layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from shardwright.runtime.data.batches import BatchSource
from shardwright.runtime.data.samples import shuffled_index


@dataclass(frozen=True)
class CountingSamples:
    """Sample k holds k T .. k T + T, so that every token says where it came from."""

    num_samples: int
    seq_len: int = 4
    name: str = "counting"
    fingerprint: str = "counting"

    def sample(self, index: int) -> NDArray[np.int64]:
        return np.arange(index * self.seq_len, (index + 1) * self.seq_len + 1)


def _source(dp: int, rank: int, micro_batch: int, *, num_samples: int = 40) -> BatchSource:
    return BatchSource(
        samples=CountingSamples(num_samples),
        seed=3,
        global_batch=12,
        micro_batch=micro_batch,
        num_micro_batches=12 // dp // micro_batch,
        dp=dp,
        dp_rank=rank,
    )


def _global_batch(dp: int, micro_batch: int, step: int) -> list[int]:
    """Sample numbers of a step, micro-batch after micro-batch, over dp ranks in order."""
    ranks = [_source(dp, rank, micro_batch).micro_batches(step) for rank in range(dp)]
    return [
        int(tokens[row, 0]) // 4
        for of_ranks in zip(*ranks, strict=True)
        for tokens, _ in of_ranks
        for row in range(tokens.shape[0])
    ]


@pytest.mark.parametrize(("dp", "micro_batch"), [(1, 1), (1, 12), (2, 3), (3, 2), (4, 1), (12, 1)])
@pytest.mark.parametrize("step", [0, 5])
def test_global_batch_does_not_depend_on_the_layout(dp: int, micro_batch: int, step: int) -> None:
    expected = [shuffled_index(step * 12 + offset, 40, 3) for offset in range(12)]
    assert _global_batch(dp, micro_batch, step) == expected


def test_labels_are_the_next_tokens() -> None:
    for tokens, labels in _source(2, 1, 3).micro_batches(0):
        assert tokens.dtype == labels.dtype == torch.int64
        assert tokens.shape == labels.shape == (3, 4)
        torch.testing.assert_close(labels, tokens + 1)


def test_epochs_wrap_inside_a_step() -> None:
    visited = [index for step in range(10) for index in _global_batch(3, 2, step)]
    assert sorted(visited[:40]) == sorted(visited[40:80]) == list(range(40))
