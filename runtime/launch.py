"""Starts the ranks of a job on this machine, watches them, and says in one line what went wrong."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from shardwright.hardware_profiles.device import current_device_type
from shardwright.hardware_profiles.rank_environment import rank_environment
from shardwright.runtime.checkpoint import CheckpointStore
from shardwright.runtime.job import JOB_FILE, SUMMARY_FILE, Failure, Job, failure_file
from shardwright.runtime.metrics import read_records
from shardwright.runtime.summary import RunSummary
from shardwright.specs import InputError, RunError, ShardwrightError
from shardwright.specs.plan import write_text

WORKER_MODULE = "shardwright.runtime.worker"

_OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Ranks meet at a store of their own, so that a restarted set never reads stale addresses."""

_SHUTDOWN_TIMEOUT_S = 30
"""How long ranks may take to save and stop after a signal before they are killed."""


def launch(job: Job) -> RunSummary:
    """Run a job on new processes of this machine, one per rank; none outlives this call.

    Raises:
        RunError: a rank failed or was killed; says which, when, and how to continue.
        InputError: a rank refused its input.
    """
    with tempfile.TemporaryDirectory(prefix="shardwright-") as name:
        folder = Path(name)
        write_text(folder / JOB_FILE, job.to_json())
        with _environment(environment_of(job)), _signal_handlers_restored(), _quiet_agent():
            failures = _run_ranks(job.plan.layout.world, folder)
        summary = folder / SUMMARY_FILE
        if failures:
            raise explain_failures(job, folder, failures)
        if not summary.exists():
            raise RunError(
                "the run was stopped by a signal before its ranks could save",
                fix=job.how_to_continue(),
            )
        return RunSummary.from_json(summary.read_text(encoding="utf-8"))


def environment_of(job: Job) -> dict[str, str]:
    """Variables that every rank of a job must start with; the plan's own win."""
    return rank_environment(current_device_type()) | _OWN_STORE | job.plan.environment


def _run_ranks(world: int, folder: Path) -> dict[int, int]:
    """Exit codes of the ranks that failed first; negative = killed by that signal."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # a free port
        local_addr="localhost",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
        shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
    )
    try:
        elastic_launch(config, sys.executable)("-m", WORKER_MODULE, str(folder))
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SignalException:
        return {}
    return {}


def explain_failures(job: Job, folder: Path, exit_codes: Mapping[int, int]) -> ShardwrightError:
    """The one error that tells why ranks ended: what killed one, else what one said."""
    # The agent ends the other ranks with SIGTERM: of that alone none dies first.
    causes = {r: code for r, code in exit_codes.items() if code != -signal.SIGTERM} or exit_codes
    for rank, code in sorted(causes.items()):
        if code < 0:
            return _killed(job, folder, rank, -code)
    said = [
        Failure.from_json(path.read_text(encoding="utf-8"))
        for rank in range(job.plan.layout.world)
        if (path := failure_file(folder, rank)).exists()
    ]
    said.sort(key=lambda failure: failure.lost_peer)
    if not said:
        rank, code = min(causes.items())
        return ShardwrightError(
            f"rank {rank} ended with exit code {code} {_when(job, folder)}",
            why="of an error of ours, shown above",
            fix=f"report it; {job.how_to_continue()}",
        )
    error = said[0].as_error()
    if isinstance(error, InputError) or error.fix is not None:
        return error
    return RunError(error.problem, why=error.why, fix=_last_checkpoint(job))


def _killed(job: Job, folder: Path, rank: int, number: int) -> RunError:
    hint = " (out of memory?)" if number == signal.SIGKILL else ""
    return RunError(
        f"rank {rank} was killed by signal {number}{hint} {_when(job, folder)};"
        f" {_last_checkpoint(job)}"
    )


def _when(job: Job, folder: Path) -> str:
    path = job.metrics_path(folder)
    records = read_records(path) if path is not None else []
    return f"at about step {records[-1].step + 1}" if records else "before the first step was done"


def _last_checkpoint(job: Job) -> str:
    step = None if job.save_path is None else CheckpointStore(job.save_path).latest_step()
    if step is None:
        return f"there is no checkpoint; {job.how_to_continue()}"
    return f"the last checkpoint is step {step} in {job.save_dir}; {job.how_to_continue()}"


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Let child processes see variables, and put the own environment back afterwards."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _signal_handlers_restored() -> Iterator[None]:
    """torch's agent takes over signals and does not give them back."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(ValueError):  # not in the main thread: nothing was taken
                signal.signal(number, handler)


@contextlib.contextmanager
def _quiet_agent() -> Iterator[None]:
    """Without the agent's own account of failed ranks: `explain_failures` gives it in one line."""
    logger = logging.getLogger("torch.distributed.elastic")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
