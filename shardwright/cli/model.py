"""``shardwright model MODEL``: what a model is made of and what a token costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.cli import _options

if TYPE_CHECKING:
    from shardwright.specs import ModelSpec


def model(
    model: _options.Model,
    seq_len: Annotated[
        str | None, typer.Option(metavar="S", help="For attention's FLOPs; default as in `plan`.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(metavar="H", help="Of an encoder: mlm in the pooler's place.")
    ] = None,
    as_json: _options.Json = False,
) -> None:
    """Show a model's exact parameter counts, FLOPs per token and blocks."""
    from shardwright.cli import _inputs, _output
    from shardwright.specs.sources import read_model

    if head is not None:
        _inputs.one_of(head, ["mlm"], "--head")
    source = read_model(model, head="mlm" if head else None)
    described = describe(source.spec, _inputs.sequence_length(seq_len, source.spec))
    described["notes"] = list(source.notes)
    if as_json:
        _output.print_json(described)
    else:
        _print(described)


def describe(spec: ModelSpec, seq_len: int) -> dict[str, Any]:
    """The facts of a model as the JSON object that ``--json`` prints.

    FLOPs are of one sample, for each of the ``seq_len`` tokens of its text (an image's patches are
    in an image's tower). Multi-token prediction counts apart from ``parameters``.
    """
    from shardwright.cost_models.flops import model_flops_6n, model_flops_megatron
    from shardwright.specs import TrainingSpec

    one_sequence = TrainingSpec(global_batch=1, seq_len=seq_len)
    return {
        "name": spec.name,
        "family": spec.family,
        "source": spec.source,
        "parameters": spec.num_parameters,
        "active_parameters": spec.num_active_parameters,
        "mtp_parameters": spec.num_prediction_parameters,
        "max_seq_len": spec.max_seq_len,
        "seq_len": seq_len,
        "flops_per_token": {
            "model_flops_megatron": model_flops_megatron(spec, one_sequence) / seq_len,
            "model_flops_6n": model_flops_6n(spec, one_sequence) / seq_len,
        },
        "towers": [
            {
                "name": tower.name,
                "parameters": tower.num_parameters,
                "active_parameters": tower.num_active_parameters,
                "tokens_per_sample": tower.tokens_per_sample,
                "layers": tower.num_layers,
                "blocks": [
                    block.model_dump(mode="json") | {"parameters": block.num_parameters}
                    for block in tower.blocks
                ],
            }
            for tower in spec.towers
        ],
        "edges": [edge.model_dump(mode="json") for edge in spec.edges],
    }


def _print(described: dict[str, Any]) -> None:
    from shardwright.cli import _output

    flops = described["flops_per_token"]
    _output.print_lines(
        f"{described['name']} ({described['family']}, from {described['source']})",
        f"parameters  {counts(described)}",
        f"positions   {_output.plain_text(described['max_seq_len'])}",
        f"training    {flops['model_flops_megatron'] / 1e9:,.4g} GFLOP a token at"
        f" {described['seq_len']:,} tokens a sequence, forward and backward"
        f" (6 x active parameters: {flops['model_flops_6n'] / 1e9:,.4g})",
    )
    for tower in described["towers"]:
        table = _output.table(f"{tower['name']} block", "count", "parameters", "of")
        for block in tower["blocks"]:
            table.add_row(
                block["kind"], f"{block.get('repeat', 1)}", f"{block['parameters']:,}", sizes(block)
            )
        _output.print_tables(table)
    _output.print_lines(*(f"note: {note}" for note in described["notes"]))


def counts(described: dict[str, Any]) -> str:
    """The parameters in words: how many, how many of them are active, and what counts apart."""
    total, active = described["parameters"], described["active_parameters"]
    share = "all of them" if active == total else f"{active:,} of them"
    apart = described["mtp_parameters"]
    more = f"; {apart:,} more for multi-token prediction" if apart else ""
    return f"{total:,}, {share} active for every token{more}"


def sizes(block: dict[str, Any]) -> str:
    """The sizes of a block in words, those of a layer's branches included."""
    parts = [
        f"{name.replace('_', ' ')} {value:,}"
        for name, value in block.items()
        if isinstance(value, int) and not isinstance(value, bool) and name not in SHOWN_ELSEWHERE
    ]
    parts += [f"{branch['body']['kind']} ({sizes(branch['body'])})" for branch in _branches(block)]
    return ", ".join(parts)


SHOWN_ELSEWHERE = ("parameters", "repeat")


def _branches(block: dict[str, Any]) -> list[dict[str, Any]]:
    branches: list[dict[str, Any]] = block.get("branches", [])
    return branches
