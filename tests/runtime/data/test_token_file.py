"""The token cache: built once, complete or not at all, and rebuilt where it is damaged."""

from __future__ import annotations

import fcntl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from shardwright.runtime.data import token_file
from shardwright.runtime.data.token_file import default_cache_dir, open_tokens
from shardwright.specs import InputError, RunError


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("one two three four\n" * 100, encoding="utf-8")
    return path


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The key of every entry that is built."""
    built: list[str] = []
    build = token_file._build_entry

    def count(*args: object, **options: object) -> None:
        built.append(str(args[3]))
        build(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(token_file, "_build_entry", count)
    return built


def test_concurrent_ranks_build_an_entry_once(
    tmp_path: Path, text: Path, builds: list[str]
) -> None:
    def open_one(_: int) -> bytes:
        return open_tokens(str(text), 300, cache_dir=tmp_path / "cache").tokens.tobytes()

    with ThreadPoolExecutor(4) as pool:
        tokens = list(pool.map(open_one, range(4)))
    assert len(builds) == 1
    assert all(each == tokens[0] for each in tokens)


def test_key_follows_content_and_vocabulary(tmp_path: Path, text: Path, builds: list[str]) -> None:
    cache = tmp_path / "cache"
    first = open_tokens(str(text), 300, cache_dir=cache).info
    assert open_tokens(str(text), 400, cache_dir=cache).info.fingerprint != first.fingerprint
    text.write_text("other\n" * 100, encoding="utf-8")
    assert open_tokens(str(text), 300, cache_dir=cache).info.fingerprint != first.fingerprint
    assert len(set(builds)) == len(builds) == 3


@pytest.mark.parametrize("damaged", ["tokens.bin", "info.json"])
def test_damaged_entry_is_built_again(
    tmp_path: Path, text: Path, builds: list[str], damaged: str
) -> None:
    cache = tmp_path / "cache"
    tokens = np.array(open_tokens(str(text), 300, cache_dir=cache).tokens)
    (path,) = cache.glob(f"*/{damaged}")
    path.write_bytes(path.read_bytes()[:-2])
    np.testing.assert_array_equal(open_tokens(str(text), 300, cache_dir=cache).tokens, tokens)
    assert len(builds) == 2


def test_wide_ids_take_four_bytes(tmp_path: Path, text: Path) -> None:
    assert open_tokens(str(text), 65_536, cache_dir=tmp_path / "c").info.dtype == "<u2"
    assert open_tokens(str(text), 65_537, cache_dir=tmp_path / "c").info.dtype == "<u4"


def test_waiting_for_another_process_ends(tmp_path: Path, text: Path) -> None:
    cache = tmp_path / "cache"
    open_tokens(str(text), 300, cache_dir=cache)
    (info,) = cache.glob("*/info.json")
    info.unlink()
    with info.parent.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="waited 0 s for another process"):
            open_tokens(str(text), 300, cache_dir=cache, wait_timeout_s=0.2)


def test_failed_build_leaves_nothing_but_the_lock(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(token_file, "encode_corpus", full_disk)
    with pytest.raises(InputError, match="No space left on device"):
        open_tokens(str(text), 300, cache_dir=tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_cache_is_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "elsewhere")
    assert default_cache_dir() == Path("elsewhere/shardwright/data")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path(".shardwright/data")
