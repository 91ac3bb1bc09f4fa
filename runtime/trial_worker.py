"""One rank of a trial: ``python -m shardwright.runtime.trial_worker FOLDER``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from shardwright.runtime.job import JOB_FILE, Failure, failure_file
from shardwright.runtime.rendezvous import find_rendezvous
from shardwright.runtime.trial import TrialJob, take_part
from shardwright.runtime.worker import die_with_parent
from shardwright.specs import ShardwrightError
from shardwright.specs.plan import read_text, write_text


def main(folder: Path) -> int:
    """Take part in the trial in ``folder``; leave visits, or this rank's failure, there."""
    rendezvous = find_rendezvous(os.environ)
    assert rendezvous is not None, "a rank of a trial is started by `sessions`"
    die_with_parent()
    job = TrialJob.from_json(read_text(folder / JOB_FILE, what="job"))
    try:
        take_part(job, rendezvous, folder)
    except ShardwrightError as error:
        write_text(failure_file(folder, rendezvous.rank), Failure.of(error).to_json())
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
