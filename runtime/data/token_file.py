"""The tokens of a corpus as one memory-mapped file, built once and cached.

A cache entry is a folder that appears complete or not at all:

    <cache>/<key>/tokens.bin      ids, uint16 or uint32, little-endian
    <cache>/<key>/tokenizer.json  the tokenizer that made them
    <cache>/<key>/info.json       `TokenFileInfo`

The key hashes the corpus' content and the vocabulary size. Of several processes that want the same
entry, one builds it under a file lock (freed by the system if the builder dies), the others wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt

from shardwright.runtime.data.corpus import Corpus, open_corpus
from shardwright.runtime.data.tokenizer import encode_corpus, train_tokenizer
from shardwright.specs import InputError, RunError, Spec

FORMAT_VERSION: Literal[1] = 1
"""Part of every key; raised when corpus reading, training or encoding changes."""


class TokenFileInfo(Spec):
    """What a token file holds, and from what it was made."""

    format_version: Literal[1] = FORMAT_VERSION
    corpus: str
    fingerprint: str
    """The cache key: equal keys hold equal tokens."""
    num_files: PositiveInt
    num_bytes: PositiveInt
    num_tokens: PositiveInt
    vocab_size: NonNegativeInt
    """Ids that the tokenizer can produce; at most the model's."""
    dtype: Literal["<u2", "<u4"]


@dataclass(frozen=True, slots=True)
class TokenFile:
    """An open token file."""

    info: TokenFileInfo
    tokens: NDArray[np.unsignedinteger[Any]]
    """[num_tokens], mapped, not read."""


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/shardwright/data``, else ``.shardwright/data`` in the current folder."""
    cache_home = os.environ.get("XDG_CACHE_HOME")
    return Path(cache_home, "shardwright", "data") if cache_home else Path(".shardwright", "data")


def open_tokens(
    data: str,
    vocab_size: int,
    *,
    cache_dir: Path | None = None,
    wait_timeout_s: float = 1800.0,
    progress: bool = True,
) -> TokenFile:
    """The tokens of ``data`` for a vocabulary of ``vocab_size``, from the cache or newly built.

    Raises:
        InputError: unusable data (see `open_corpus`, `train_tokenizer`), or a cache that cannot be
            written.
        RunError: another process held the lock for ``wait_timeout_s`` seconds.
    """
    corpus = open_corpus(data)
    key = hashlib.sha256(
        f"{FORMAT_VERSION}:{corpus.fingerprint}:{vocab_size}".encode()
    ).hexdigest()[:32]
    folder = (cache_dir or default_cache_dir()) / key
    found = _open_entry(folder)
    if found is not None:
        return found
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock"), wait_timeout_s):
            if (found := _open_entry(folder)) is None:
                _build_entry(corpus, vocab_size, folder, key, progress=progress)
                found = _open_entry(folder)
    except OSError as error:
        raise InputError(
            f"cannot write the token cache {folder}: {error.strerror}",
            fix="free space there, or set XDG_CACHE_HOME to another folder",
        ) from None
    assert found is not None
    return found


def _open_entry(folder: Path) -> TokenFile | None:
    """The entry, or None where there is none or its files do not fit together."""
    try:
        info = TokenFileInfo.from_json((folder / "info.json").read_text(encoding="utf-8"))
        tokens = np.memmap(folder / "tokens.bin", dtype=info.dtype, mode="r")
    except (OSError, InputError, ValueError):
        return None
    return TokenFile(info, tokens) if tokens.size == info.num_tokens else None


def _build_entry(
    corpus: Corpus, vocab_size: int, folder: Path, key: str, *, progress: bool
) -> None:
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        tokenizer = train_tokenizer(corpus, vocab_size)
        dtype: Literal["<u2", "<u4"] = "<u2" if vocab_size <= 1 << 16 else "<u4"
        num_tokens = 0
        with (partial / "tokens.bin").open("wb") as file:
            for ids in encode_corpus(corpus, tokenizer, progress=progress):
                file.write(np.asarray(ids, dtype=dtype).tobytes())
                num_tokens += len(ids)
        (partial / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
        info = TokenFileInfo(
            corpus=corpus.name,
            fingerprint=key,
            num_files=len(corpus.files),
            num_bytes=corpus.num_bytes,
            num_tokens=num_tokens,
            vocab_size=tokenizer.get_vocab_size(),
            dtype=dtype,
        )
        (partial / "info.json").write_text(info.to_json(), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # a damaged entry of the same key
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the file stays, only the lock is released."""
    deadline = time.monotonic() + timeout_s
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise RunError(
                        f"waited {timeout_s:.0f} s for another process to tokenize the data",
                        why=f"it still holds {path}",
                        fix="wait for it or end it, then start again",
                    ) from None
                time.sleep(0.1)
        yield
