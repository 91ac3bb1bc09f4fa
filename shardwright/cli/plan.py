"""``shardwright plan MODEL --cluster C``: the best layout, and why it is the best."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardwright.cli import _options

if TYPE_CHECKING:
    from shardwright.cost_models.money import Terms
    from shardwright.planner.importers.yours import Yours
    from shardwright.specs import Plan


def plan(
    model: _options.MaybeModel = None,
    cluster: _options.MaybeCluster = None,
    gpus: _options.Gpus = None,
    nodes: _options.Nodes = None,
    global_batch: _options.GlobalBatch = None,
    seq_len: _options.SeqLen = None,
    precision: _options.Precision = None,
    optimizer: _options.Optimizer = None,
    gradient_dtype: _options.GradientDType = None,
    trainable: _options.Trainable = "full",
    stack: _options.Stack = None,
    tokens: _options.Tokens = None,
    objective: Annotated[
        str,
        typer.Option(
            help="What to make best: step-time, cost (of the run to --tokens), gpus (the fewest),"
            " memory-headroom."
        ),
    ] = "step-time",
    deadline: _options.Deadline = None,
    budget: Annotated[
        str | None, typer.Option(metavar="USD", help="What the run to --tokens may cost: 1.5M.")
    ] = None,
    usd_per_gpu_hour: Annotated[
        float | None, typer.Option(min=0, metavar="USD", help="Price, in place of the catalogue's.")
    ] = None,
    slack: Annotated[
        str,
        typer.Option(
            metavar="S", help="How much slower memory-headroom may be than the best step."
        ),
    ] = "5%",
    fix: _options.Fix = None,
    forbid: _options.Forbid = None,
    bound: Annotated[
        str | None,
        typer.Option(
            metavar="B", help="Limits on numbers of a layout: tp<=4,pp>=2,peak_memory<=70GiB."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, metavar="K", help="Layouts in the table.")] = 5,
    time_limit: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Seconds of search; then the best found, with its gap. Default 30, beside a script"
            " 2.",
        ),
    ] = None,
    from_megatron: _options.Script = None,
    set_: _options.Variables = None,
    add: _options.More = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the plan to this file.")
    ] = None,
    force: _options.Force = False,
    as_json: _options.Json = False,
) -> None:
    """Find the best layout for a model on a cluster, with a certificate."""
    from shardwright.cli import _importing, _inputs, _output
    from shardwright.planner import api
    from shardwright.specs import Plan

    if output is not None:
        _output.check_output(output, Plan, force=force)
    goal = _inputs.goal(
        objective, deadline=deadline, budget=budget, slack=slack, usd_per_gpu_hour=usd_per_gpu_hour
    )
    training = _inputs.Training(
        global_batch, seq_len, precision, optimizer, trainable, tokens, gradient_dtype
    )
    typed = _importing.Asked(model, cluster, gpus, nodes, training, stack)
    asked, job = _importing.question_of(typed, from_megatron, set_, add)
    with _output.progress("searching") as show:
        answer = api.plan(
            model=asked.model,
            profile=asked.profile,
            training=asked.training,
            software=asked.software,
            fix=fix,
            forbid=_inputs.names(forbid),
            bound=bound or "",
            top=top,
            objective=goal,
            assumed=asked.assumed,
            time_limit_s=time_limit or _importing.time_limit_s(job),
            command=shlex.join(["shardwright", *sys.argv[1:]]),
            suggest=job is None or time_limit is not None,
            progress=lambda at: show(f"{at.simulated:,} simulated", at.bound_s / at.best_step_s),
        )
    answer, yours = _importing.beside_yours(answer, job)
    made = answer.plan and priced_from(answer.plan, asked.source)
    if made is not None and output is not None:
        made.save(output)
    if as_json:
        _output.print_json(_importing.json_of(answer, job, yours))
    else:
        _output.print_lines(*([] if job is None else _importing.job_lines(job)))
        _print_answer(made, output, goal.terms, yours)
    _output.require_feasible(answer, details=not as_json)


def _print_answer(plan: Plan | None, path: Path | None, terms: Terms, yours: Yours | None) -> None:
    """The plan for people; where there is none, what is to be said of the user's own layout."""
    from shardwright.cli import _output, _tables

    if plan is not None:
        print_plan(plan, path, terms, yours)
    elif yours is not None:
        _output.print_lines(*_tables.yours_lines(yours))


def priced_from(plan: Plan, source: str) -> Plan:
    """The plan with what the user wrote for the cluster, so that `explain` finds the prices."""
    provenance = plan.provenance.model_copy(update={"profile_source": source})
    return plan.model_copy(update={"provenance": provenance})


def print_plan(plan: Plan, path: Path | None, terms: Terms, yours: Yours | None = None) -> None:
    """The plan for people: what was asked, the table, the ties, the certificate, what next."""
    from shardwright.cli import _output, _tables

    _output.print_lines(*_tables.plan_lines(plan))
    _output.print_tables(_tables.candidates_table(_tables.ranked(plan), yours=yours))
    if yours is not None:
        _output.print_lines(*_tables.yours_lines(yours))
    if plan.layout.pp > 1:
        _output.print_lines(f"stages    {_tables.stages_in_words(plan.layout)}")
    _output.print_lines(
        *_tables.groups_in_words(plan),
        *_tables.ties_in_words(plan),
        *_tables.budget_in_words(plan, terms),
        *_tables.counts_in_words(plan),
        f"certain   {_tables.certificate_in_words(plan.certificate)}",
        "",
        *next_commands(path),
    )


def next_commands(path: Path | None) -> Iterator[str]:
    """What to type next."""
    if path is None:
        yield "next: the same command with -o plan.json keeps this plan"
        return
    yield f"next: shardwright explain {path}"
    yield f"      shardwright run {path} --data DATA --steps 100"
