"""Which files a corpus holds, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.runtime.data.corpus import STDLIB, open_corpus
from shardwright.specs import InputError


def _write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _text(data: Path) -> list[str]:
    return ["".join(document) for document in open_corpus(str(data)).documents()]


def test_folder_gives_its_text_files_in_name_order(tmp_path: Path) -> None:
    _write(tmp_path / "b.txt", b"second\r\n")
    _write(tmp_path / "a" / "z.md", "erste \u00fc\n".encode())
    _write(tmp_path / "weights.bin", b"\x00\x01\x02")
    _write(tmp_path / "latin.txt", b"caf\xe9")
    _write(tmp_path / ".hidden" / "secret.txt", b"no")
    corpus = open_corpus(str(tmp_path))
    assert [path.name for path in corpus.files] == ["b.txt", "z.md"]
    assert corpus.num_skipped == 2
    assert _text(tmp_path) == ["second\r\n", "erste \u00fc\n"]


def test_pieces_of_a_long_file_add_up_to_it(tmp_path: Path) -> None:
    text = "".join(f"line {number} \u00e9\n" for number in range(200_000))
    path = _write(tmp_path / "long.txt", text.encode())
    (document,) = open_corpus(str(path)).documents()
    pieces = list(document)
    assert len(pieces) > 1
    assert all(piece.endswith("\n") for piece in pieces)
    assert "".join(pieces) == text


def test_fingerprint_follows_names_and_content(tmp_path: Path) -> None:
    for folder, name, content in [
        ("one", "a", b"x"), ("same", "a", b"x"), ("content", "a", b"y"), ("name", "b", b"x"),
    ]:  # fmt: skip
        _write(tmp_path / folder / name, content)
    prints = {
        folder.name: open_corpus(str(folder)).fingerprint for folder in sorted(tmp_path.iterdir())
    }
    assert prints["one"] == prints["same"]
    assert len(set(prints.values())) == 3


def test_stdlib_is_python_source_alone() -> None:
    corpus = open_corpus(STDLIB)
    assert {path.suffix for path in corpus.files} == {".py"}
    assert any(path.name == "argparse.py" for path in corpus.files)
    assert not any("site-packages" in path.parts for path in corpus.files)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(None, "there is no data file", id="missing"),
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"\x7fELF\x00\x00\x01", "holds no text", id="binary"),
        pytest.param(b"\xff\xfe\xfd", "holds no text", id="not-utf8"),
        pytest.param(b"cut \xe2\x82", "holds no text", id="cut-character"),
    ],
)
def test_unusable_file_is_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "data.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=problem):
        open_corpus(str(path))


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no files"):
        open_corpus(str(tmp_path))


def test_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path / "data.txt", b"text")

    def refuse(self: Path, *args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # file modes do not bind the superuser
    with pytest.raises(InputError, match=r"data\.txt: Permission denied"):
        open_corpus(str(path))
