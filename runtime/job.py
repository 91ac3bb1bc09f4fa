"""`Job`: all that a rank must know to run a plan, and what ranks leave for whoever started them."""

from __future__ import annotations

from pathlib import Path

from pydantic import PositiveFloat, PositiveInt

from shardwright.runtime.metrics import METRICS_FILE
from shardwright.specs import InputError, Plan, RunError, ShardwrightError, Spec

JOB_FILE = "job.json"
SUMMARY_FILE = "summary.json"


class Job(Spec):
    """What to run, how long, and where to keep it."""

    plan: Plan
    """With the run's seed."""
    data: str
    steps: PositiveInt
    """Optimizer steps of the whole run, those before a resumption included."""
    save_dir: str | None = None
    resume: bool = False
    save_every: PositiveInt | None = None
    """Steps between checkpoints; null = at the end alone."""
    keep: PositiveInt = 2
    """How many of the newest checkpoints stay."""
    init_from: str | None = None
    """Folder of Hugging Face weights to start from."""
    log_every: PositiveInt = 10
    timeout_s: PositiveFloat = 600.0
    """How long a rank waits for the others in one collective before it gives up."""

    @property
    def save_path(self) -> Path | None:
        return None if self.save_dir is None else Path(self.save_dir)

    def metrics_path(self, folder: Path | None) -> Path | None:
        """Beside the checkpoints, else in the launcher's folder, else nowhere."""
        kept = self.save_path or folder
        return None if kept is None else kept / METRICS_FILE

    def check(self) -> None:
        """Raise `InputError` for options that contradict each other."""
        if self.save_dir is None and (self.resume or self.save_every is not None):
            option = "--resume" if self.resume else "--save-every"
            raise InputError(
                f"{option} needs a folder of checkpoints", fix="name it with --save DIR"
            )
        if self.resume and self.init_from is not None:
            raise InputError(
                "--resume continues with the checkpoint's weights, so --init-from has no effect",
                fix="leave out one of the two",
            )

    def how_to_continue(self) -> str:
        """What to type after a failure."""
        if self.save_dir is None:
            return "run again, with --save DIR to keep checkpoints"
        return f"continue with: shardwright run ... --save {self.save_dir} --resume"


class Failure(Spec):
    """Why a rank ended its run: the parts of a `ShardwrightError`."""

    exit_code: int
    problem: str
    why: str | None = None
    fix: str | None = None
    lost_peer: bool = False
    """It failed only because another rank was gone."""

    @classmethod
    def of(cls, error: ShardwrightError) -> Failure:
        return cls(
            exit_code=error.exit_code,
            problem=error.problem,
            why=error.why,
            fix=error.fix,
            lost_peer=isinstance(error, LostPeerError),
        )

    def as_error(self) -> ShardwrightError:
        kind = InputError if self.exit_code == InputError.exit_code else RunError
        return kind(self.problem, why=self.why, fix=self.fix)


class LostPeerError(RunError):
    """A collective failed because another rank is gone or silent; that rank knows why."""


def failure_file(folder: Path, rank: int) -> Path:
    """Where a rank that was started by `launch` leaves its `Failure`."""
    return folder / f"failure-{rank}.json"
