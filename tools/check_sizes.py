"""Files and functions stay small: hard limits, and the medians that we aim at, reported."""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.sources import EVERYTHING, LIBRARY, ROOT, python_files

MAX_FILE_LINES = 700
MAX_FUNCTION_LINES = 100


@dataclass(frozen=True, slots=True)
class Size:
    """A file or a function with its length in lines."""

    where: str
    lines: int


def function_sizes(path: Path, text: str) -> Iterator[Size]:
    """Each function of a file with its lines, decorators and docstring not counted."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Size(f"{path}:{node.lineno} {node.name}", _body_lines(node))


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    lines = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is None or len(node.body) == 1:
        return lines
    assert first.end_lineno is not None
    return lines - (first.end_lineno - first.lineno + 1)


def too_long(sizes: Iterable[Size], limit: int) -> list[str]:
    """One line for each that exceeds the limit."""
    return [f"{s.where}: {s.lines} lines, limit {limit}" for s in sizes if s.lines > limit]


def describe(what: str, sizes: list[Size]) -> str:
    """Count, median, 90th percentile and maximum."""
    lines = sorted(size.lines for size in sizes)
    p90 = lines[int(0.9 * (len(lines) - 1))]
    median = statistics.median(lines)
    return f"{what}: {len(lines)}, lines median {median:g}, p90 {p90}, max {lines[-1]}"


def measure(paths: Iterable[Path], root: Path) -> tuple[list[Size], list[Size]]:
    """The sizes of files and of their functions."""
    files: list[Size] = []
    functions: list[Size] = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(root)
        files.append(Size(str(name), text.count("\n")))
        functions += function_sizes(name, text)
    return files, functions


def main(root: Path = ROOT) -> int:
    """Print the sizes of the library and every breach anywhere; 1 where there is one."""
    files, functions = measure(python_files(*EVERYTHING, root=root), root)
    breaches = too_long(files, MAX_FILE_LINES) + too_long(functions, MAX_FUNCTION_LINES)
    library_files, library_functions = measure(python_files(*LIBRARY, root=root), root)
    report = [describe("files", library_files), describe("functions", library_functions), *breaches]
    sys.stdout.write("\n".join(report) + "\n")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
