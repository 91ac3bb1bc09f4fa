"""One rank that `launch` started: ``python -m shardwright.runtime.worker FOLDER``."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from pathlib import Path

from shardwright.runtime.job import JOB_FILE, SUMMARY_FILE, Failure, Job, failure_file
from shardwright.runtime.rendezvous import find_rendezvous
from shardwright.runtime.trainer import train
from shardwright.specs import ShardwrightError
from shardwright.specs.plan import read_text, write_text

_PR_SET_PDEATHSIG = 1


def main(folder: Path) -> int:
    """Run the job in ``folder``; leave its summary (rank 0) or this rank's failure there."""
    rendezvous = find_rendezvous(os.environ)
    assert rendezvous is not None, "a worker is started by an agent"
    die_with_parent()
    speaks = logging.INFO if rendezvous.rank == 0 else logging.WARNING
    logging.basicConfig(level=speaks, format="%(message)s")
    job = Job.from_json(read_text(folder / JOB_FILE, what="job"))
    try:
        summary = train(job, rendezvous, folder=folder)
    except ShardwrightError as error:
        path = failure_file(folder, rendezvous.rank)
        write_text(path, Failure.of(error).to_json())
        return error.exit_code
    if summary is not None:
        write_text(folder / SUMMARY_FILE, summary.to_json())
    return 0


def die_with_parent() -> None:
    """Have the kernel kill this process when its agent is gone, however that ended (Linux)."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
