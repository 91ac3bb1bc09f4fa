"""A corpus: which text files ``--data`` names, what they hold, and the fingerprint of it all."""

from __future__ import annotations

import codecs
import hashlib
import logging
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardwright.specs import InputError

logger = logging.getLogger(__name__)

STDLIB = "python-stdlib"
"""The source text of Python's own standard library: real text that every machine has."""

_READ_BYTES = 1 << 20
_STDLIB_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests"})


@dataclass(frozen=True, slots=True)
class Corpus:
    """Text files in a fixed order."""

    name: str
    """As the user wrote it."""
    files: tuple[Path, ...]
    num_bytes: int
    num_skipped: int
    """Files of the folder that hold no UTF-8 text."""
    fingerprint: str
    """SHA-256 over each file's name and content, as 64 hex digits."""

    def documents(self) -> Iterator[Iterator[str]]:
        """Each file as an iterator over pieces of its text."""
        for path in self.files:
            yield _read_pieces(path)


def open_corpus(data: str) -> Corpus:
    """The corpus that ``data`` names: ``python-stdlib``, a text file, or a folder of text files.

    A folder is searched in depth, without hidden files; what is no UTF-8 text in it is left out.

    Raises:
        InputError: nothing there, not readable, or no text in it.
    """
    root, candidates = _candidates(data)
    digest = hashlib.sha256()
    kept: list[Path] = []
    num_bytes = 0
    for path in candidates:
        content = _text_digest(path)
        if content is None:
            continue
        name = path.relative_to(root).as_posix() if path != root else path.name
        digest.update(f"{len(name)}:{name}".encode() + content.digest)
        num_bytes += content.num_bytes
        kept.append(path)
    num_skipped = len(candidates) - len(kept)
    if not num_bytes:
        raise _no_text(data, len(candidates), num_skipped)
    if num_skipped:
        logger.info("data: %d of %d files hold no UTF-8 text", num_skipped, len(candidates))
    return Corpus(data, tuple(kept), num_bytes, num_skipped, digest.hexdigest())


def _no_text(data: str, num_files: int, num_skipped: int) -> InputError:
    if not num_files:
        problem = f"the data folder {data} holds no files"
    elif num_skipped:
        problem = f"the data {data} holds no text: {num_skipped} of {num_files} files are not UTF-8"
    else:
        problem = f"the data {data} is empty: 0 bytes in {num_files} files"
    return InputError(
        problem, fix=f"name a text file, a folder of text files, {STDLIB} or mock with --data"
    )


def _candidates(data: str) -> tuple[Path, list[Path]]:
    """The root and every file that may hold text, in an order that machines agree on."""
    if data == STDLIB:
        root = Path(sysconfig.get_path("stdlib"))
        files = [p for p in _walk(root, _STDLIB_SKIPPED_FOLDERS) if p.suffix == ".py"]
        return root, files
    root = Path(data)
    if not root.exists():
        raise InputError(
            f"there is no data file or folder {data}",
            fix=f"check the path, or use {STDLIB} or mock",
        )
    return root, [root] if root.is_file() else list(_walk(root, frozenset()))


def _walk(root: Path, skipped_folders: frozenset[str]) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise InputError(f"cannot read the data folder {error.filename}: {error.strerror}")

    for folder, subfolders, names in os.walk(root, onerror=refuse):
        subfolders[:] = sorted(
            name
            for name in subfolders
            if name not in skipped_folders and not name.startswith((".", "__pycache__"))
        )
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file():
                yield path


@dataclass(frozen=True, slots=True)
class _Content:
    digest: bytes
    num_bytes: int


def _text_digest(path: Path) -> _Content | None:
    """SHA-256 and size of a file; None where it is not UTF-8 text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    digest = hashlib.sha256()
    num_bytes = 0
    try:
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                if b"\0" in block:
                    return None
                decoder.decode(block)
                digest.update(block)
                num_bytes += len(block)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise InputError(f"cannot read the data file {path}: {error.strerror}") from None
    return _Content(digest.digest(), num_bytes)


def _read_pieces(path: Path) -> Iterator[str]:
    """The text of a file in pieces that end at a line's end where lines are of sane length."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            while piece := file.read(_READ_BYTES):
                yield piece + file.readline(_READ_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the data file {path} changed while it was read: {error}") from None
