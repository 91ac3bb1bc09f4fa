"""Every public number of the cost models and hardware profiles carries its unit in its name.

A parameter, field or property typed ``int``, ``float`` or a numeric pydantic alias must end with a
unit, count things by a word for things, or stand in `DIMENSIONLESS`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.sources import ROOT, python_files

CHECKED = ("cost_models", "hardware_profiles")

UNIT = re.compile(
    r"(^|_)(bytes|s|flops|bytes_per_s|flops_per_s|watts|joules|usd|usd_per_hour|usd_per_gpu_hour"
    r"|fraction|ratio|hertz|per_s)$"
)
COUNT = re.compile(
    r"^(num_|max_num_|busy_)|(^|_)(ranks|groups|heads|layers|tokens|parameters|devices|nodes|gpus"
    r"|batches|microbatches|micro_batches|kernels|launches|rounds|repeats|steps|stages|workers"
    r"|chunks|elements|numel|rows|count|cores)$"
)
INDEX = re.compile(r"(^|_)(rank|stage|chunk|layer|index|micro_batch|node|seed|port|start|stop)$")
SIZE = re.compile(r"(^|_)(size|dim|seq_len|seq_q|seq_kv|batch|degree|length)$")
DIMENSIONLESS = frozenset({
    "m", "n", "k",  # extents of a matmul
    "tp", "cp", "pp", "vpp", "dp", "ep", "etp", "edp", "zero",  # degrees and the ZeRO stage
    "world", "concurrency", "total", "parts",
    "x", "value", "capacity",  # the unit stands beside them as data
    "efficiency", "mfu", "utilisation", "probability", "exponent",
})  # fmt: skip

NUMERIC = re.compile(
    r"^(int|float|(NonNegative|Positive|Strict)?(Int|Float)|NonNegativeInt|NonNegativeFloat)"
    r"( \| None)?$"
)


def has_unit(name: str) -> bool:
    """Whether a name says what its number counts or measures."""
    patterns = (UNIT, COUNT, INDEX, SIZE)
    return name in DIMENSIONLESS or any(pattern.search(name) for pattern in patterns)


def numbers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every public numeric field, parameter and property of a module."""
    for node in _public(tree.body):
        if isinstance(node, ast.ClassDef):
            for member in _public(node.body):
                yield from _numbers_of(member)
        else:
            yield from _numbers_of(node)


def _public(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        name = getattr(node, "name", None)
        if name is None or not name.startswith("_") or name == "__init__":
            yield node


def _numbers_of(node: ast.stmt) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        if _is_number(node.annotation) and not node.target.id.startswith("_"):
            yield node.lineno, node.target.id.lower()
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for argument in arguments:
            if argument.annotation is not None and _is_number(argument.annotation):
                yield argument.lineno, argument.arg
        if _is_property(node) and node.returns is not None and _is_number(node.returns):
            yield node.lineno, node.name


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
    return bool(names & {"property", "cached_property"})


def _is_number(annotation: ast.expr) -> bool:
    return NUMERIC.match(ast.unparse(annotation)) is not None


def breaches(path: Path, text: str) -> list[str]:
    """One line for each number of a file whose name does not say its unit."""
    return [
        f"{path}:{line}: {name} does not say its unit (_bytes, _s, _flops, num_..., or list it in"
        " tools/check_units.py)"
        for line, name in numbers(ast.parse(text))
        if not has_unit(name)
    ]


def main(root: Path = ROOT) -> int:
    """Print every breach; 1 where there is one."""
    found = []
    checked = 0
    for path in python_files(*CHECKED, root=root):
        checked += 1
        found += breaches(path.relative_to(root), path.read_text(encoding="utf-8"))
    sys.stdout.write("\n".join([*found, f"units: {checked} files checked"]) + "\n")
    return 1 if found or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
