"""Checks of what users ran and what became of it, held against the cost models and the planner.

    python benchmarks/user_cases.py CHECKS.json --models MODEL_CONFIGS.json [--json]

``CHECKS.json``: a list of checks (`user_case_jobs` says what one looks like, `user_case_kinds`
what each kind asks). ``MODEL_CONFIGS.json``: Hugging Face configs by name; names that it does not
have are looked up among the presets. Exit code 0 where every check was answered, whether it passed
or not; 2 where a file is unusable.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # started as a file: its neighbours are found from the root
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.user_case_jobs import Record, read_checks, read_configs
from benchmarks.user_case_kinds import Judge, Verdict
from shardwright.specs import InputError

TIME_LIMIT_S = 30.0
"""For each search; the best layout found until then counts."""


@dataclass(frozen=True, slots=True)
class Result:
    """One check and its verdict."""

    id: str
    kind: str
    passed: bool
    predicted: Any
    expected: Any
    reason: str


def results(checks: Sequence[Record], judge: Judge) -> Iterator[Result]:
    """Every check's result in order."""
    for number, check in enumerate(checks):
        verdict: Verdict = judge.judge(check)
        wanted = check.get("check")
        kind = wanted.get("kind") if isinstance(wanted, dict) else None
        yield Result(
            id=str(check.get("id", number)),
            kind=str(kind),
            passed=verdict.passed,
            predicted=verdict.predicted,
            expected=verdict.expected,
            reason=verdict.reason,
        )


def as_line(one: Result) -> str:
    """``pass  ID  kind  predicted (expected): reason``."""
    word = "pass" if one.passed else "FAIL"
    numbers = f"{_short(one.predicted)} (expected {_short(one.expected)})"
    return f"{word}  {one.id}  {one.kind}: {numbers}; {one.reason}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list) and len(value) == 2 and not isinstance(value[0], str):
        return (
            "-".join("" if end is None else f"{end:g}" for end in value)
            if all(isinstance(end, int | float | None) for end in value)
            else str(value)
        )
    return str(value)


def summary(found: Sequence[Result]) -> list[str]:
    """Passes by kind, and in all."""
    kinds = sorted({one.kind for one in found})
    rows = [(kind, [one for one in found if one.kind == kind]) for kind in kinds]
    lines = [
        f"{kind:22} {sum(one.passed for one in some):4} of {len(some):4}"
        for kind, some in [*rows, ("all", list(found))]
    ]
    return ["", *lines]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the checks of a file and prints them; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checks", type=Path)
    parser.add_argument("--models", type=Path, help="Hugging Face configs by name, as JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT_S, metavar="SECONDS",
                        help="for each search of the planner")  # fmt: skip
    parser.add_argument("--only", metavar="TEXT", help="checks whose id or kind contains it")
    given = parser.parse_args(arguments)
    try:
        checks = read_checks(given.checks)
        configs = {} if given.models is None else read_configs(given.models)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if given.only:
        checks = [one for one in checks if _is_named(one, given.only)]
    found = []
    for one in results(checks, Judge(configs, given.time_limit)):
        found.append(one)
        if not given.json:
            sys.stdout.write(as_line(one) + "\n")
            sys.stdout.flush()
    if given.json:
        sys.stdout.write(json.dumps({"checks": [asdict(one) for one in found]}, indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(summary(found)) + "\n")
    return 0


def _is_named(check: Record, text: str) -> bool:
    wanted = check.get("check")
    kind = wanted.get("kind") if isinstance(wanted, dict) else ""
    return text in str(check.get("id")) or text == kind


if __name__ == "__main__":
    sys.exit(main())
