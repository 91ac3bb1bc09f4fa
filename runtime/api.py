"""`run`: train a plan, on this machine or as a rank of a running launch."""

from __future__ import annotations

import os
from pathlib import Path

from shardwright.runtime.job import Job
from shardwright.runtime.launch import launch
from shardwright.runtime.preflight import check_job, look_around, open_data
from shardwright.runtime.rendezvous import Rendezvous, find_rendezvous
from shardwright.runtime.summary import RunSummary
from shardwright.specs import Plan, ShardwrightError, TrainingSpec


def run(
    *,
    plan_path: Path | str,
    data: str,
    steps: int,
    save_dir: Path | str | None = None,
    resume: bool = False,
    save_every: int | None = None,
    seed: int | None = None,
    init_from: Path | str | None = None,
    log_every: int = 10,
    keep: int = 2,
    timeout_s: float = 600.0,
) -> RunSummary | None:
    """Train a plan for ``steps`` optimizer steps and compare it with its prediction.

    Inside a launch of torchrun, srun or mpirun this process becomes one of its ranks; otherwise one
    process per rank of the plan is started on this machine, and none of them outlives the call.

    Args:
        plan_path: a file that ``shardwright plan -o`` wrote.
        data: a text file or folder, ``python-stdlib``, or ``mock``.
        steps: of the whole run, those before a resumption included.
        save_dir: where checkpoints and ``metrics.jsonl`` go; a checkpoint is made at the end.
        resume: continue from the last checkpoint in ``save_dir``.
        save_every: also make a checkpoint every so many steps.
        seed: of weights and data order, in place of the plan's.
        init_from: a folder of Hugging Face weights to start from.
        log_every: steps between lines on stderr.
        keep: how many of the newest checkpoints stay.
        timeout_s: how long a rank waits for the others before it gives up.

    Returns:
        The summary; None on every rank but the first of a launch that was joined.

    Raises:
        InputError: wrong options, plan, data, hardware, world size or checkpoint; nothing was
            touched.
        RunError: the run failed; the last checkpoint is safe.
        SystemExit: on ranks of a joined launch whose first rank raises the same error, with that
            error's exit code.
    """
    plan = Plan.load(Path(plan_path))
    if seed is not None:
        changed = plan.training.model_dump() | {"seed": seed}
        training = TrainingSpec.from_value(changed, source=f"--seed {seed}")
        plan = plan.model_copy(update={"training": training})
    job = Job.from_value(
        {
            "plan": plan,
            "data": data,
            "steps": steps,
            "save_dir": None if save_dir is None else str(save_dir),
            "resume": resume,
            "save_every": save_every,
            "init_from": None if init_from is None else str(init_from),
            "log_every": log_every,
            "keep": keep,
            "timeout_s": timeout_s,
        },
        source="the options of run",
    )
    rendezvous = find_rendezvous(os.environ)
    if rendezvous is not None:
        return _join(job, rendezvous)
    check_job(job, None, look_around(plan.layout.world, None))
    open_data(job, progress=True)
    return launch(job)


def _join(job: Job, rendezvous: Rendezvous) -> RunSummary | None:
    from shardwright.runtime.trainer import train

    try:
        return train(job, rendezvous)
    except ShardwrightError as error:
        if rendezvous.rank == 0 or not error.on_every_rank:
            raise
        raise SystemExit(error.exit_code) from None
