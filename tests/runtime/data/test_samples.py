"""Samples cover the tokens; the shuffled order is a permutation of every epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardwright.runtime.data.samples import open_samples, shuffled_index
from shardwright.runtime.data.token_file import open_tokens
from shardwright.specs import InputError


@pytest.mark.parametrize("num_samples", [1, 2, 3, 4, 5, 16, 17, 1000])
def test_every_epoch_visits_every_sample_once(num_samples: int) -> None:
    for epoch in range(3):
        start = epoch * num_samples
        visited = [
            shuffled_index(start + offset, num_samples, seed=5) for offset in range(num_samples)
        ]
        assert sorted(visited) == list(range(num_samples))


def test_order_is_shuffled_and_differs_by_epoch_and_seed() -> None:
    def order(start: int, seed: int) -> list[int]:
        return [shuffled_index(start + offset, 500, seed) for offset in range(500)]

    orders = [order(0, 0), order(500, 0), order(0, 1)]
    for visited in orders:
        in_place = sum(index == offset for offset, index in enumerate(visited))
        assert in_place < 10  # one is expected
        assert abs(np.corrcoef(visited, range(500))[0, 1]) < 0.2
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_order_never_changes() -> None:
    """A resumed run must see the order of the run that it continues, on any machine."""
    visited = [shuffled_index(position, 10, seed=0) for position in range(20)]
    assert visited == [6, 1, 9, 4, 5, 8, 0, 3, 7, 2, 3, 5, 0, 6, 4, 2, 7, 1, 8, 9]


def test_text_samples_overlap_by_one_token(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b c d e f g h\n" * 20, encoding="utf-8")
    cache = tmp_path / "cache"
    tokens = open_tokens(str(text), 257, cache_dir=cache).tokens
    samples = open_samples(str(text), vocab_size=257, seq_len=16, cache_dir=cache)
    assert samples.num_samples == (tokens.size - 1) // 16
    for index in range(samples.num_samples):
        np.testing.assert_array_equal(samples.sample(index), tokens[index * 16 : index * 16 + 17])


def test_mock_samples_depend_on_their_number_alone() -> None:
    samples = open_samples("mock", vocab_size=50, seq_len=8)
    again = open_samples("mock", vocab_size=50, seq_len=8)
    np.testing.assert_array_equal(samples.sample(7), again.sample(7))
    assert not np.array_equal(samples.sample(7), samples.sample(8))
    drawn = np.concatenate([samples.sample(index) for index in range(200)])
    assert set(drawn.tolist()) == set(range(50))


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("short", encoding="utf-8")
    with pytest.raises(InputError, match="less than one sample of 65"):
        open_samples(str(text), vocab_size=257, seq_len=64, cache_dir=tmp_path / "cache")
