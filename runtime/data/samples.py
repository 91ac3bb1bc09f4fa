"""Samples: windows of seq_len + 1 tokens, and the order in which training visits them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardwright.runtime.data.token_file import TokenFile, open_tokens
from shardwright.specs import InputError

MOCK = "mock"
"""Random tokens: for timing and tests, without any text."""

_MOCK_SAMPLES = 1 << 40


class SampleSource(Protocol):
    """A numbered, finite set of samples of one length."""

    @property
    def name(self) -> str:
        """What the user asked for, for messages."""

    @property
    def fingerprint(self) -> str:
        """Equal for equal samples, on every machine."""

    @property
    def num_samples(self) -> int: ...

    def sample(self, index: int) -> NDArray[np.int64]:
        """[seq_len + 1] token ids."""


@dataclass(frozen=True, slots=True)
class TextSamples:
    """Sample k is tokens [k T, (k + 1) T]: each shares its last token with the next one's first."""

    file: TokenFile
    seq_len: int

    @property
    def name(self) -> str:
        return self.file.info.corpus

    @property
    def fingerprint(self) -> str:
        return self.file.info.fingerprint

    @property
    def num_samples(self) -> int:
        return (self.file.info.num_tokens - 1) // self.seq_len

    def sample(self, index: int) -> NDArray[np.int64]:
        start = index * self.seq_len
        return self.file.tokens[start : start + self.seq_len + 1].astype(np.int64)


@dataclass(frozen=True, slots=True)
class MockSamples:
    """Uniformly random tokens, a function of the sample's number alone."""

    vocab_size: int
    seq_len: int

    @property
    def name(self) -> str:
        return MOCK

    @property
    def fingerprint(self) -> str:
        return f"{MOCK}:{self.vocab_size}"

    @property
    def num_samples(self) -> int:
        return _MOCK_SAMPLES

    def sample(self, index: int) -> NDArray[np.int64]:
        generator = np.random.Generator(np.random.Philox(key=index))
        return generator.integers(self.vocab_size, size=self.seq_len + 1, dtype=np.int64)


def open_samples(
    data: str,
    *,
    vocab_size: int,
    seq_len: int,
    cache_dir: Path | None = None,
    progress: bool = True,
) -> SampleSource:
    """The samples of ``data``: ``mock``, ``python-stdlib``, a text file or a folder of them.

    Raises:
        InputError: unusable data, or too little text for one sample.
    """
    if data == MOCK:
        return MockSamples(vocab_size, seq_len)
    samples = TextSamples(
        open_tokens(data, vocab_size, cache_dir=cache_dir, progress=progress), seq_len
    )
    if samples.num_samples < 1:
        raise InputError(
            f"the data {data} has {samples.file.info.num_tokens} tokens, less than one sample of"
            f" {seq_len + 1}",
            fix="give more text, or plan a shorter --seq-len",
        )
    return samples


def shuffled_index(position: int, num_samples: int, seed: int) -> int:
    """Which sample is visited at ``position`` of an endless run over shuffled epochs.

    Every epoch is another permutation of [0, num_samples), a function of (seed, epoch) alone, in
    constant memory: a Feistel network over the next power of four, walked until it lands inside
    the range (Black and Rogaway 2002, "Ciphers with arbitrary finite domains", method 2).
    """
    epoch, index = divmod(position, num_samples)
    half_bits = ((num_samples - 1).bit_length() + 1) // 2
    key = f"{seed}:{epoch}:".encode()
    while True:
        index = _feistel(index, half_bits, key)
        if index < num_samples:
            return index


def _feistel(value: int, half_bits: int, key: bytes, rounds: int = 6) -> int:
    """A permutation of the integers of 2 x ``half_bits`` bits."""
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for number in range(rounds):
        message = key + bytes([number]) + right.to_bytes(8, "little")
        mixed = int.from_bytes(hashlib.blake2b(message, digest_size=8).digest(), "little")
        left, right = right, left ^ (mixed & mask)
    return left << half_bits | right
