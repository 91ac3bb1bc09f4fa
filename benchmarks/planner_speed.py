"""How long a plan takes: whole processes of the command line, timed from outside.

What the interpreter, the command line and its libraries cost anyway is measured with
``shardwright models`` and stated apart. CPU time is what a loaded machine changes least.

    python -m benchmarks.planner_speed
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

REPETITIONS = 5
BASELINE = "models"
QUESTIONS = (
    "plan llama-3.1-70b --cluster dgx-h100 --gpus 64 --global-batch 128 --seq-len 8192",
    "plan llama-3.1-405b --cluster dgx-h100:1",
    "plan gpt-3-175b --cluster dgx-a100-80gb --gpus 1024",
)
FEASIBLE, INFEASIBLE = 0, 3
"""Exit codes of an answer."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians over whole processes."""

    wall_s: float
    user_s: float


def timing(command: str) -> Timing:
    """The median process of a command line."""
    runs = [_run(command) for _ in range(REPETITIONS)]
    return Timing(
        wall_s=statistics.median(run.wall_s for run in runs),
        user_s=statistics.median(run.user_s for run in runs),
    )


def _run(command: str) -> Timing:
    arguments = [sys.executable, "-m", "shardwright", *command.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    user_before_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    start_s = time.perf_counter()
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - start_s
    if done.returncode not in (FEASIBLE, INFEASIBLE):
        raise SystemExit(done.stderr)
    return Timing(wall_s, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - user_before_s)


def main() -> None:
    """Write the table as Markdown."""
    start = timing(BASELINE)
    sys.stdout.write(
        "| command | user CPU (s) | of it planning | wall (s) | of it planning |\n"
        "|---|--:|--:|--:|--:|\n"
        f"| `{BASELINE}` | {start.user_s:.2f} | | {start.wall_s:.2f} | |\n"
    )
    for question in QUESTIONS:
        whole = timing(question + " --json")
        sys.stdout.write(
            f"| `{question}` | {whole.user_s:.2f} | {whole.user_s - start.user_s:.2f}"
            f" | {whole.wall_s:.2f} | {whole.wall_s - start.wall_s:.2f} |\n"
        )


if __name__ == "__main__":
    main()
