"""Folders of exported files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardwright.planner.exporters.exported import Exported
from shardwright.planner.exporters.files import write_folder
from shardwright.specs import InputError

FILES = Exported("t", "1", {"train.sh": "#!/bin/bash\n", "config.json": "{}\n"})


def test_a_new_folder_is_made_with_scripts_that_can_be_started(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    written = write_folder(FILES, folder)
    assert [path.name for path in written] == ["train.sh", "config.json"]
    assert (folder / "config.json").read_text() == "{}\n"
    assert os.access(folder / "train.sh", os.X_OK)
    assert not os.access(folder / "config.json", os.X_OK)
    assert [path.name for path in folder.parent.iterdir()] == ["b"], "nothing is left beside it"
    assert write_folder(FILES, folder) == written, "the same again changes nothing"


def test_other_files_are_kept_and_changed_ones_only_replaced_by_force(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "config.json").write_text("mine")
    with pytest.raises(InputError, match=r"already has config\.json"):
        write_folder(FILES, tmp_path)
    assert not (tmp_path / "train.sh").exists(), "all or none"
    write_folder(FILES, tmp_path, force=True)
    assert (tmp_path / "config.json").read_text() == "{}\n"
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is no folder"):
        write_folder(FILES, tmp_path / "file")
    (tmp_path / "train.sh").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write_folder(FILES, tmp_path, force=True)


def test_half_a_folder_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InputError, match="No space left"):
        write_folder(FILES, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
