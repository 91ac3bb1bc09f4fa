"""``shardwright what-if MODEL --cluster C --vary gpus=64,128``: many plans side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.cli import _options

Vary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUES",
        help="What varies; several make every combination. gpus=64,128 or gpus=64..1024:64 (:x2"
        " doubles), nodes, layers, seq_len=8k,32k, global_batch, tokens, cluster, model, precision,"
        " optimizer, stack, any choice of a layout (tp=1,2,4), and parts of the cluster: memory,"
        " memory_bandwidth, flops, intra_node_bandwidth, inter_node_bandwidth=50%,200%.",
    ),
]
Solve = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Find the largest seq_len, micro_batch or layers, or the fewest gpus, that works.",
    ),
]
Deadline = Annotated[
    str | None, typer.Option(metavar="T", help="Longest time of the whole run: 60d, 500h.")
]
Budget = Annotated[str | None, typer.Option(metavar="USD", help="Most money: 5M, 250000.")]
UsdPerGpuHour = Annotated[
    float | None, typer.Option(min=0.0, help="Price, where it is not the catalogue's.")
]
Mtbf = Annotated[
    str | None,
    typer.Option(
        metavar="T",
        help="Mean time between failures of one device with its part of node and network: 50000h,"
        " or never; default that of Llama 3's training.",
    ),
]
CheckpointTime = Annotated[
    str | None, typer.Option(metavar="T", help="How long training waits for one checkpoint: 40s.")
]
RestartTime = Annotated[
    str | None, typer.Option(metavar="T", help="From a failure until training goes on: 11min.")
]
Pue = Annotated[float, typer.Option(min=1.0, help="Energy of the site over that of its computers.")]


Model = Annotated[
    str | None, typer.Argument(metavar="[MODEL]", help="As for plan, unless it varies.")
]
Cluster = Annotated[str | None, typer.Option(metavar="C", help="As for plan, unless it varies.")]
TimeLimit = Annotated[
    float, typer.Option(min=0.1, help="Seconds of search of a point; then the best found.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Points planned at once; default all cores.")]
Cache = Annotated[
    bool, typer.Option("--cache/--no-cache", help="Keep results on disk, and use those kept.")
]
Csv = Annotated[Path | None, typer.Option(metavar="F", help="Write all points as CSV.")]
Html = Annotated[Path | None, typer.Option(metavar="F", help="Write all points as one page.")]


def what_if(
    model: Model = None,
    cluster: Cluster = None,
    vary: Vary = None,
    solve: Solve = None,
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
    fix: _options.Fix = None,
    forbid: _options.Forbid = None,
    deadline: Deadline = None,
    budget: Budget = None,
    usd_per_gpu_hour: UsdPerGpuHour = None,
    mtbf: Mtbf = None,
    checkpoint_time: CheckpointTime = None,
    restart_time: RestartTime = None,
    pue: Pue = 1.0,
    time_limit: TimeLimit = 30.0,
    jobs: Jobs = None,
    cache: Cache = True,
    csv: Csv = None,
    html: Html = None,
    force: _options.Force = False,
    as_json: _options.Json = False,
) -> None:
    """Plan every combination of what varies; say what each costs, and which is best."""
    from shardwright.cli import _inputs, _output, _what_if, _what_if_html
    from shardwright.planner.what_if import api

    for path in (csv, html):
        if path is not None:
            _what_if.check_file(path, force=force)
    terms = _what_if.terms_of(usd_per_gpu_hour, mtbf, checkpoint_time, restart_time, pue)
    settings = {
        "gpus": gpus, "nodes": nodes, "global_batch": global_batch, "seq_len": seq_len,
        "precision": precision, "optimizer": optimizer, "gradient_dtype": gradient_dtype,
        "trainable": trainable, "stack": stack,
    }  # fmt: skip
    with _output.progress("planning") as show:
        answer = api.what_if(
            model=model,
            cluster=cluster,
            vary=vary or (),
            settings=settings,
            tokens=tokens,
            fix=fix or "",
            forbid=_inputs.names(forbid),
            terms=terms,
            deadline_s=_what_if.duration(deadline, "--deadline"),
            budget_usd=_what_if.dollars(budget),
            unknown=_what_if.unknown(solve),
            jobs=jobs,
            use_cache=cache,
            time_limit_s=time_limit,
            progress=lambda done, total: show(f"{done:,} of {total:,} points", done / total),
        )
    _what_if.warn(answer)
    if csv is not None:
        _what_if.write_csv(csv, answer)
    if html is not None:
        _what_if_html.write_html(html, answer)
    if as_json:
        _output.print_json(answer.to_json_dict())
    else:
        _what_if.print_answer(answer)
    _output.require_feasible(answer, details=False)
