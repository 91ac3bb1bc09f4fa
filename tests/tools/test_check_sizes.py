"""Breaches are found with their place; docstrings do not count."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_sizes
from tools.sources import EVERYTHING


def write_tree(root: Path, text: str) -> None:
    for folder in EVERYTHING:
        (root / folder).mkdir()
    (root / "planner" / "module.py").write_text(text)


def test_a_function_at_the_limit_passes_and_one_beyond_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = check_sizes.MAX_FUNCTION_LINES
    body = "    pass\n"
    write_tree(tmp_path, "def fits():\n" + body * (lines - 1) + "def too_long():\n" + body * lines)
    assert check_sizes.main(tmp_path) == 1
    assert f"planner/module.py:{lines + 1} too_long: {lines + 1} lines, limit {lines}" in (
        capsys.readouterr().out
    )


def test_a_file_beyond_the_limit_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(tmp_path, "def one():\n    pass\n" + "x = 1\n" * check_sizes.MAX_FILE_LINES)
    assert check_sizes.main(tmp_path) == 1
    assert f"planner/module.py: {check_sizes.MAX_FILE_LINES + 2} lines" in capsys.readouterr().out


def test_a_docstring_is_not_counted(tmp_path: Path) -> None:
    text = 'def f():\n    """One.\n\n    Two.\n    """\n    return 1\n'
    (size,) = check_sizes.function_sizes(tmp_path, text)
    assert size.lines == 2


def test_methods_and_nested_functions_are_counted(tmp_path: Path) -> None:
    text = "class A:\n    def m(self):\n        def inner():\n            pass\n"
    names = [size.where.split()[-1] for size in check_sizes.function_sizes(tmp_path, text)]
    assert names == ["m", "inner"]


def test_the_report_gives_median_and_ninetieth_percentile() -> None:
    sizes = [check_sizes.Size("f", lines) for lines in range(1, 12)]
    assert check_sizes.describe("functions", sizes) == (
        "functions: 11, lines median 6, p90 10, max 11"
    )
