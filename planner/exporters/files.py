"""Exported files onto disk: all of them or none, and nothing of the user's is overwritten."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from shardwright.planner.exporters.exported import Exported
from shardwright.specs import InputError
from shardwright.specs.plan import check_folder, write_text

_EXECUTABLE = frozenset({".sh", ".sbatch"})


def write_folder(exported: Exported, folder: Path, *, force: bool = False) -> list[Path]:
    """Write every file into a folder, which is made where there is none.

    A new folder appears whole. In one that is there, each file appears whole; other files in it are
    left alone, and those of the same name are replaced only with ``force``.

    Raises:
        InputError: a file is there and would be overwritten, or the folder cannot be written.
    """
    check_folder(folder)
    paths = [folder / name for name in exported.files]
    _refuse_overwriting(exported, folder, force=force)
    if folder.exists():
        for path, text in zip(paths, exported.files.values(), strict=True):
            write_text(path, text)
            _make_executable(path)
    else:
        _write_new(exported, folder)
    return paths


def _refuse_overwriting(exported: Exported, folder: Path, *, force: bool) -> None:
    folders = [name for name in exported.files if (folder / name).is_dir()]
    if folders:
        raise InputError(f"{folder / folders[0]} is a folder", fix="choose another folder for -o")
    changed = [
        name for name, text in exported.files.items()
        if os.path.lexists(folder / name) and not _is_same(folder / name, text)
    ]  # fmt: skip
    if changed and not force:
        raise InputError(
            f"{folder} already has {', '.join(changed)}, which differ from what would be written",
            fix="choose another folder for -o, or add --force to overwrite them",
        )


def _is_same(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


def _write_new(exported: Exported, folder: Path) -> None:
    """Through a neighbour that is renamed, so that nobody sees half a folder."""
    neighbour: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        neighbour = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        for name, text in exported.files.items():
            (neighbour / name).write_text(text, encoding="utf-8")
            _make_executable(neighbour / name)
        neighbour.chmod(0o777 & ~_umask())  # a temporary folder is closed to others
        neighbour.rename(folder)
    except OSError as error:
        if neighbour is not None:
            shutil.rmtree(neighbour, ignore_errors=True)
        raise InputError(
            f"cannot write {folder}: {error.strerror}", fix="free space or choose another folder"
        ) from None


def _make_executable(path: Path) -> None:
    if path.suffix in _EXECUTABLE:
        with contextlib.suppress(OSError):
            path.chmod(path.stat().st_mode | 0o111 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
