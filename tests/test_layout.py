"""The house stands as it is described: links, guards, and a test file for every module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.sources import HOUSES, LIBRARY, ROOT, python_files

NO_TEST_OF_ITS_OWN = {
    "shardwright/__main__.py": "started by tests/test_imports.py",
    "shardwright/cli/_options.py": "declarations only; every command's test reads them",
    "shardwright/cli/_probe.py": "started by tests/cli/test_checks.py as the command starts it",
}
"""Modules without a test file that mirrors them, each with the reason."""


@pytest.mark.parametrize("house", HOUSES)
def test_each_house_is_linked_relatively(house: str) -> None:
    link = ROOT / "shardwright" / house
    assert link.is_symlink()
    assert link.readlink() == Path("..") / house


@pytest.mark.parametrize("house", HOUSES)
def test_a_house_refuses_its_bare_name(house: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {house}"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"import shardwright.{house}" in done.stderr


def mirror_of(module: Path) -> Path:
    """The test file of a module: ``planner/search.py`` -> ``tests/planner/test_search.py``."""
    parts = [part for part in module.parts[:-1] if part != "shardwright"]
    return Path("tests", *parts, f"test_{module.stem.strip('_')}.py")


def has_code(module: Path) -> bool:
    """Whether there is anything to test: an ``__init__`` that only re-exports is not."""
    text = module.read_text(encoding="utf-8")
    return module.name != "__init__.py" or "def " in text or "class " in text


def test_every_module_has_its_test_file() -> None:
    modules = [path.relative_to(ROOT) for path in python_files(*LIBRARY) if has_code(path)]
    assert len(modules) > 50
    missing = {
        str(module) for module in modules if not (ROOT / mirror_of(module)).exists()
    } - NO_TEST_OF_ITS_OWN.keys()
    assert not missing, f"no test file mirrors {sorted(missing)}"


def test_the_allow_list_names_only_modules_that_need_it() -> None:
    for name in NO_TEST_OF_ITS_OWN:
        assert (ROOT / name).exists()
        assert not (ROOT / mirror_of(Path(name))).exists()


def test_no_module_has_two_names() -> None:
    """The linter reads real files once: no path of the list goes through a link."""
    paths = [path.resolve() for path in python_files(*LIBRARY)]
    assert len(paths) == len(set(paths))
