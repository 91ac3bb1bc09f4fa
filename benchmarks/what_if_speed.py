"""How long 200 points take, planned and then kept: whole processes, timed from outside.

    python -m benchmarks.what_if_speed [--jobs N]

The first process starts with nothing kept, the second finds every point on disk. Then some of the
points are planned by ``shardwright plan`` and compared.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

QUESTION = (
    "what-if llama-3.1-70b --cluster dgx-h100 --vary gpus=32..800:32"
    " --vary global_batch=512,1024,1536,2048 --vary seq_len=4k,8k --tokens 15T --deadline 60d"
)
"""25 x 4 x 2 points."""
FIRST_LIMIT_S = 60.0
AGAIN_LIMIT_S = 1.0
"""What is wanted on two cores."""
NUM_COMPARED = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """One process, its children's CPU time included."""

    wall_s: float
    cpu_s: float
    last_line: str


def timing(arguments: list[str], folder: str) -> Timing:
    """Run the question once with its results kept in ``folder``."""
    command = [sys.executable, "-m", "shardwright", *QUESTION.split(), *arguments]
    environment = {**os.environ, "SHARDWRIGHT_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start_s = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - start_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stderr)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timing(wall_s, cpu_s, done.stdout.splitlines()[-1])


def num_equal(folder: str) -> int:
    """How many of every 40th point are what `plan` says, layout and prediction to the last bit."""
    points = _json([*QUESTION.split()], folder)["points"]
    equal = 0
    for point in points[:: len(points) // NUM_COMPARED]:
        given = point["varied"]
        command = [
            "plan", "llama-3.1-70b", "--cluster", "dgx-h100", "--gpus", given["gpus"],
            "--global-batch", given["global_batch"], "--seq-len", given["seq_len"],
        ]  # fmt: skip
        planned = _json(command, folder)
        equal += all(planned[what] == point[what] for what in ("layout", "prediction"))
    return equal


def _json(arguments: list[str], folder: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "shardwright", *arguments, "--json"],
        env={**os.environ, "SHARDWRIGHT_CACHE_DIR": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    return dict(json.loads(done.stdout))


def main() -> None:
    """Write the table as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        first = timing(sys.argv[1:], folder)
        again = timing(sys.argv[1:], folder)
        equal = num_equal(folder)
    sys.stdout.write(
        "| 200 points | wall (s) | CPU (s) | wanted (s) | says |\n|---|--:|--:|--:|---|\n"
        f"| planned | {first.wall_s:.2f} | {first.cpu_s:.2f} | {FIRST_LIMIT_S:g}"
        f" | {first.last_line} |\n"
        f"| again | {again.wall_s:.2f} | {again.cpu_s:.2f} | {AGAIN_LIMIT_S:g}"
        f" | {again.last_line} |\n"
        f"\n{equal} of {NUM_COMPARED} points compared are what `shardwright plan` says.\n"
    )


if __name__ == "__main__":
    main()
