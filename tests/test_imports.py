"""What a command costs before it does anything, and which libraries it must not need."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import pytest

HEAVY = ("torch", "ortools", "transformers", "tokenizers", "safetensors", "scipy", "pandas")
HELP_LIMIT_S = 0.3

RUN = """
import json, sys
from shardwright.cli import execute
code = execute(sys.argv[1:])
sys.stderr.write("\\n" + json.dumps({"code": code, "modules": sorted(sys.modules)}))
"""


def modules_after(*arguments: str) -> set[str]:
    """The modules that are loaded when a command that ends well is done."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stderr.splitlines()[-1])
    assert report["code"] == 0, done.stderr
    return set(report["modules"])


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--help"], id="help"),
        pytest.param(["plan", "--help"], id="plan-help"),
        pytest.param(["models"], id="models"),
        pytest.param(["clusters"], id="clusters"),
        pytest.param(["model", "gpt2"], id="model"),
        pytest.param(
            ["plan", "gpt2", "--cluster", "dgx-h100", "--gpus", "2", "--global-batch", "8"],
            id="plan",
        ),
    ],
)
def test_planning_needs_no_heavy_library(arguments: list[str]) -> None:
    assert modules_after(*arguments).isdisjoint(HEAVY)


def test_help_loads_none_of_our_machinery() -> None:
    ours = {name for name in modules_after("--help") if name.startswith("shardwright.")}
    assert all(name.startswith("shardwright.cli") for name in ours)


def seconds_of_help() -> float:
    """Wall seconds of one ``shardwright --help``, or its processor seconds where others ran too."""
    used_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "shardwright", "--help"], capture_output=True, check=True)
    wall = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = used.ru_utime + used.ru_stime - used_before.ru_utime - used_before.ru_stime
    return min(wall, busy)


@pytest.mark.alone
def test_help_takes_less_than_its_limit() -> None:
    assert min(seconds_of_help() for _ in range(5)) < HELP_LIMIT_S
