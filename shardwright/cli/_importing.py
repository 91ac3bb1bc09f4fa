"""What `plan`, `estimate` and `import` share about files of other software."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.planner.importers.job import Asked as Asked
from shardwright.planner.importers.job import choices_of, job_of
from shardwright.planner.importers.registry import Given, variables_from
from shardwright.planner.question import question
from shardwright.specs import InputError

if TYPE_CHECKING:
    from shardwright.planner.api import PlanAnswer
    from shardwright.planner.importers.job import Job
    from shardwright.planner.importers.yours import Yours
    from shardwright.planner.question import Question

MEGATRON = "megatron-lm"
TIME_LIMIT_S, BESIDE_A_SCRIPT_S = 30.0, 2.0
"""Of the search; beside a user's own layout it is answered while they wait."""


def time_limit_s(job: Job | None) -> float:
    """How long is searched where nothing was typed."""
    return TIME_LIMIT_S if job is None else BESIDE_A_SCRIPT_S


def given(variables: Sequence[str] | None, more: str | None) -> Given:
    """What ``--set`` and ``--add`` say; raises `InputError`."""
    try:
        words = tuple(shlex.split(more or ""))
    except ValueError as error:
        raise InputError(f"--add cannot be read: {error}", fix="close its quotes") from None
    return Given(variables_from(list(variables or ())), words)


def question_of(
    asked: Asked, script: Path | None, variables: Sequence[str] | None, more: str | None
) -> tuple[Question, Job | None]:
    """The question of a model and a cluster, or of a script with what is typed beside it.

    Raises:
        InputError: neither names a model or a cluster, or the script cannot be read.
    """
    if script is not None:
        job = job_of(script, MEGATRON, asked, given(variables, more))
        return job.question, job
    if variables or more:
        raise InputError(
            "--set and --add say more of a script, but none is given", fix="add --from-megatron"
        )
    if asked.model is None:
        raise InputError(
            "no model is named",
            fix="name a preset (see `shardwright models`), or give a script with --from-megatron",
        )
    if asked.cluster is None:
        raise InputError("no cluster is named", fix="add --cluster C (see `shardwright clusters`)")
    found = question(
        asked.model, asked.cluster, gpus=asked.gpus, nodes=asked.nodes, training=asked.training,
        stack=asked.stack,
    )  # fmt: skip
    return found, None


def layout_of_job(layout: str | None, job: Job | None) -> Mapping[str, Any] | str:
    """The layout that is typed, or else the script's own; raises `InputError` without any."""
    if layout is not None:
        return layout
    if job is None:
        raise InputError("no layout is named", fix="add --layout tp=8,pp=4,micro_batch=1")
    return choices_of(job.reading)


def beside_yours(answer: PlanAnswer, job: Job | None) -> tuple[PlanAnswer, Yours | None]:
    """The answer, and the user's own layout beside it; None where there is no script."""
    if job is None:
        return answer, None
    from shardwright.planner.importers.yours import adopted, yours_of
    from shardwright.planner.problem import Problem

    one = job.question
    problem = Problem(one.model, one.training, one.profile, one.software)
    yours = yours_of(problem, job.reading, answer)
    return adopted(answer, yours), yours


def json_of(answer: PlanAnswer, job: Job | None, yours: Yours | None) -> dict[str, Any]:
    """The answer with what was read of a script, where there is one."""
    found = answer.to_json_dict()
    if job is None:
        return found
    reading = job.reading
    return {
        **found,
        "yours": None if yours is None else yours.to_json_dict(),
        "imported": {
            "source": reading.source,
            "stated": dict(reading.stated),
            "unread": list(reading.unread),
            "conflicts": [*reading.conflicts, *job.notes],
        },
    }


def job_lines(job: Job) -> Iterator[str]:
    """What of a script is not in the plan's question."""
    yield f"script    {job.reading.source}"
    for text in (*job.notes, *job.reading.conflicts):
        yield f"note      {text}"
    for text in job.reading.unread:
        yield f"not read  {text}"
