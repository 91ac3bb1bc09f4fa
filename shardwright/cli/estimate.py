"""``shardwright estimate MODEL --cluster C --layout tp=8,...``: what one given layout costs."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwright.cli import _options


def estimate(
    model: _options.Model,
    cluster: _options.Cluster,
    layout: Annotated[
        str,
        typer.Option(
            metavar="L", help="The layout: tp=8,pp=12,dp=4,micro_batch=1,zero=1,recompute=full."
        ),
    ],
    gpus: _options.Gpus = None,
    nodes: _options.Nodes = None,
    global_batch: _options.GlobalBatch = None,
    seq_len: _options.SeqLen = None,
    precision: _options.Precision = None,
    optimizer: _options.Optimizer = None,
    trainable: _options.Trainable = "full",
    tokens: _options.Tokens = None,
    as_json: _options.Json = False,
) -> None:
    """Price one layout: time with its band, memory per pipeline rank, and where they go."""
    from shardwright.cli import _inputs, _output, _tables
    from shardwright.planner import api

    training = _inputs.Training(global_batch, seq_len, precision, optimizer, trainable, tokens)
    asked = _inputs.question(model, cluster, gpus=gpus, nodes=nodes, training=training)
    answer = api.estimate(
        model=asked.model,
        profile=asked.profile,
        training=asked.training,
        software=asked.software,
        layout=layout,
        assumed=asked.assumed,
    )
    if as_json:
        _output.print_json(answer.to_json_dict())
    elif answer.plan is not None:
        _output.print_lines(*_tables.plan_lines(answer.plan))
        _output.print_tables(
            _tables.candidates_table(_tables.ranked(answer.plan), chosen=None),
            _tables.breakdown_table(answer.plan.prediction),
            _tables.memory_table(answer.plan.prediction),
        )
    _output.require_feasible(answer, details=not as_json)
