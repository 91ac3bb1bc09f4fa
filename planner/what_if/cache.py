"""Results on disk, so that a question that was answered once is not planned again.

An entry's name is the hash of everything that the answer depends on: the question in text, the
bytes of every file that it names, and our own code and data as they lie on disk. Entries are two
lines, a checksum and the outcome; what does not match its checksum is taken for absent. Nothing
here ever fails: a folder that cannot be written only means that nothing is kept.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import shardwright
from shardwright.planner.what_if.points import Outcome, Point
from shardwright.specs import Spec

ENVIRONMENT = "SHARDWRIGHT_CACHE_DIR"
"""The variable that names another folder."""
FORMAT = 1
"""Of an entry."""


class Cache:
    """Outcomes by the hash of their question; ``folder`` None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, key: str | None) -> Outcome | None:
        """What is kept under a key; None where nothing is, or nothing that can be trusted."""
        if key is None or self._folder is None:
            return None
        try:
            checksum, text = self._path(key).read_text(encoding="utf-8").split("\n", 1)
            if _hash(text) != checksum:
                return None
            return Outcome.from_json_dict(json.loads(text))
        except (OSError, ValueError, RecursionError):
            return None

    def save(self, key: str | None, outcome: Outcome) -> None:
        """Keep an outcome that more time would not change, complete or not at all."""
        if key is None or self._folder is None or not outcome.is_proven:
            return
        text = json.dumps(outcome.to_json_dict(), separators=(",", ":"), allow_nan=False)
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(f"{_hash(text)}\n{text}")
                os.replace(partial, path)
            except OSError:
                os.unlink(partial)

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / key[:2] / f"{key[2:]}.json"


def default_folder() -> Path:
    """``$SHARDWRIGHT_CACHE_DIR``, else ``shardwright`` in the user's folder for caches."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return Path(named) / "what-if"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "shardwright" / "what-if"


class Keys:
    """Keys of points; what many points share is hashed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str | Spec, list[str] | None]] = {}

    def of(self, point: Point) -> str | None:
        """The hash of all that a point's outcome depends on; None where that cannot be known from
        text alone: a model made by the user's own code, or this very machine."""
        model, cluster = self._content(point.model), self._content(point.cluster)
        if model is None or cluster is None:
            return None
        asked = [
            FORMAT, code_hash(), model, cluster, sorted(point.settings.items()), point.fix,
            sorted(point.forbid),
        ]  # fmt: skip
        return _hash(json.dumps(asked))

    def _content(self, named: str | Spec) -> list[str] | None:
        """What a model or a cluster is, as far as our code does not say it."""
        if id(named) not in self._known:  # kept alive by the entry, so that ids stay theirs
            content = _of_text(named) if isinstance(named, str) else [named.content_hash()]
            self._known[id(named)] = named, content
        return self._known[id(named)][1]


@functools.cache
def code_hash() -> str:
    """The hash of names, sizes and times of change of our code and data files."""
    root = Path(shardwright.__file__).parent
    found: list[Any] = [shardwright.__version__]
    for folder, _, names in os.walk(root, followlinks=True):
        if folder.endswith("__pycache__"):
            continue
        for name in names:
            if name.endswith((".py", ".json", ".toml")):
                state = os.stat(os.path.join(folder, name))
                found.append([folder[len(str(root)) :], name, state.st_size, state.st_mtime_ns])
    return _hash(json.dumps(sorted(found, key=str)))


def _of_text(text: str) -> list[str] | None:
    """The text, with the bytes of the file that it names."""
    path = Path(text)
    with contextlib.suppress(OSError, ValueError):
        if path.is_dir():
            path = path / "config.json"
        if path.is_file():
            return [text, os.path.abspath(path), hashlib.sha256(path.read_bytes()).hexdigest()]
    is_factory = text.rpartition(":")[2].isidentifier() and ":" in text
    return None if text.strip() == "local" or is_factory else [text]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
