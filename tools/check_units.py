"""Every public number of the cost models and hardware profiles carries its unit in its name.

A parameter, field or property typed ``int``, ``float`` or a numeric pydantic alias must end with a
unit, count things by a word for things, or stand in `DIMENSIONLESS`. Where the first word of the
docstring of a field, a property or a whole record is the unit (``Bytes of an element ...``), that
says it too.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.sources import ROOT, python_files

CHECKED = ("cost_models", "hardware_profiles")

UNIT = re.compile(
    r"(^|_)(bytes|s|flops|bytes_per_s|flops_per_s|watts|joules|usd|usd_per_hour|usd_per_gpu_hour"
    r"|fraction|ratio|hertz|per_s|bytes_per_logit|s_per_flop|gpu_hours|days)$"
)
COUNT = re.compile(
    r"^(num_|max_num_|busy_)|^(tokens_per_step|token_budget)$|(^|_)(ranks|groups|heads|layers|tokens|parameters|devices|nodes|gpus"
    r"|batches|microbatches|micro_batches|kernels|launches|rounds|repeats|steps|stages|workers"
    r"|chunks|elements|numel|rows|count|cores|samples|messages|most|units"
    r"|inputs|outputs|adapters|copies|domains|times|iterations|sides|period|experts?|tied|dense)$"
)
INDEX = re.compile(r"(^|_)(rank|stage|chunk|layer|index|micro_batch|node|seed|port|fd|start|stop)$")
SIZE = re.compile(r"(^|_)(size|dim|len|extent|seq_q|seq_kv|batch|degree|length)$")
STATED = re.compile(r"(Bytes|Seconds|Index|Extent)\b")
"""How the docstring of a number that has no unit in its name begins."""
DIMENSIONLESS = frozenset({
    "m", "n", "k", "a", "b", "out", "inner", "hidden",  # extents of tensors
    "tp", "cp", "pp", "vpp", "dp", "ep", "etp", "edp", "zero",  # degrees and the ZeRO stage
    "world", "concurrency", "total", "parts",
    "x", "value",  # the unit stands beside them as data
    "capacity", "nic_capacity",  # of a shared resource: how many ranks use it at full speed
    "efficiency", "mfu", "utilisation", "probability", "exponent", "factor", "label_smoothing",
    "share", "done", "visible",  # fractions of a whole
    "pue",  # power usage effectiveness
    "stride", "source", "target",  # ranks
    "centre", "spread", "noise", "low", "high", "z", "weight",  # of logarithms and of estimates
    "tile_intensity", "tile_depth", "wave_rounding", "attention_ramp",  # shapes of kernels
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
    """Line and name of every public numeric field, parameter and property of a module.

    Without those whose docstring states the unit.
    """
    for node, docstring in _public(tree.body):
        if not isinstance(node, ast.ClassDef):
            yield from _numbers_of(node, docstring)
        elif not STATED.match(ast.get_docstring(node) or ""):
            for member, said in _public(node.body):
                yield from _numbers_of(member, said)


def _public(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Statements that are not private, each with the docstring that belongs to it."""
    for node, behind in itertools.zip_longest(body, body[1:]):
        name = getattr(node, "name", "")
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, ast.get_docstring(node) or ""
        else:
            yield node, _text_of(behind)


def _text_of(node: ast.stmt | None) -> str:
    """The text of a bare string, as documents the field before it."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return str(node.value.value)
    return ""


def _numbers_of(node: ast.stmt, docstring: str) -> Iterator[tuple[int, str]]:
    stated = STATED.match(docstring) is not None
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        if _is_number(node.annotation) and not node.target.id.startswith("_") and not stated:
            yield node.lineno, node.target.id.lower()
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for argument in arguments:
            if _is_number(argument.annotation):
                yield argument.lineno, argument.arg
        if _is_property(node) and _is_number(node.returns) and not stated:
            yield node.lineno, node.name


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
    return bool(names & {"property", "cached_property"})


def _is_number(annotation: ast.expr | None) -> bool:
    return annotation is not None and NUMERIC.match(ast.unparse(annotation)) is not None


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
