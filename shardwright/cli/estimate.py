"""``shardwright estimate MODEL --cluster C --layout tp=8,...``: what one given layout costs."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwright.cli import _options


def estimate(
    model: _options.MaybeModel = None,
    cluster: _options.MaybeCluster = None,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="L",
            help="The layout: tp=8,pp=12,dp=4,micro_batch=1. Names: tp, cp, cp_kind (ring,"
            " all_to_all, all_gather), pp, vpp, dp, ep, etp, micro_batch, num_microbatches, zero"
            " (0-3), zero_shard_degree, expert_zero_shard_degree, reshard_after_forward,"
            " sequence_parallel (sp), recompute (none, full, full:LAYERS, selective,"
            " selective:core_attn+mlp, by stage a/b/c), schedule (gpipe, 1f1b, interleaved-1f1b,"
            " zb-h1, zb-h2, zb-v, dualpipev), offload (activations+optimizer+parameters),"
            " loss_chunks, compile, stages (0-20/20-40), rank_order. Default: that of the script.",
        ),
    ] = None,
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
    from_megatron: _options.Script = None,
    set_: _options.Variables = None,
    add: _options.More = None,
    as_json: _options.Json = False,
) -> None:
    """Price one layout: time with its band, memory per pipeline rank, and where they go."""
    from shardwright.cli import _importing, _inputs, _output, _tables
    from shardwright.planner import api

    training = _inputs.Training(
        global_batch, seq_len, precision, optimizer, trainable, tokens, gradient_dtype
    )
    wanted = _importing.Asked(model, cluster, gpus, nodes, training, stack)
    asked, job = _importing.question_of(wanted, from_megatron, set_, add)
    answer = api.estimate(
        model=asked.model,
        profile=asked.profile,
        training=asked.training,
        software=asked.software,
        layout=_importing.layout_of_job(layout, job),
        assumed=asked.assumed,
    )
    if as_json:
        _output.print_json(_importing.json_of(answer, job, None))
        _output.require_feasible(answer, details=False)
        return
    _output.print_lines(*([] if job is None else _importing.job_lines(job)))
    if answer.plan is not None:
        _output.print_lines(*_tables.plan_lines(answer.plan))
        _output.print_tables(
            _tables.candidates_table(_tables.ranked(answer.plan), chosen=None),
            _tables.breakdown_table(answer.plan.prediction),
            _tables.memory_table(answer.plan.prediction),
        )
    _output.require_feasible(answer, details=not as_json)
