"""Files are listed once, by their real paths."""

from __future__ import annotations

from pathlib import Path

from tools.sources import HOUSES, LIBRARY, ROOT, python_files


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "planner").mkdir()
    (tmp_path / "planner" / "a.py").touch()
    (tmp_path / "shardwright").mkdir()
    (tmp_path / "shardwright" / "b.py").touch()
    (tmp_path / "shardwright" / "planner").symlink_to(Path("..") / "planner")
    listed = [path.relative_to(tmp_path) for path in python_files(*LIBRARY, root=tmp_path)]
    assert listed == [Path("planner/a.py"), Path("shardwright/b.py")]


def test_every_house_is_listed() -> None:
    listed = {path.relative_to(ROOT).parts[0] for path in python_files(*LIBRARY)}
    assert listed == {*HOUSES, "shardwright"}
