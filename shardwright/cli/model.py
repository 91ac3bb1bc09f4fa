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
    as_json: _options.Json = False,
) -> None:
    """Show a model's exact parameter counts, FLOPs per token and blocks."""
    from shardwright.cli import _inputs, _output
    from shardwright.specs.sources import resolve_model

    spec = resolve_model(model)
    described = describe(spec, _inputs.sequence_length(seq_len, spec))
    if as_json:
        _output.print_json(described)
    else:
        _print(described)


def describe(spec: ModelSpec, seq_len: int) -> dict[str, Any]:
    """The facts of a model as the JSON object that ``--json`` prints."""
    from shardwright.cost_models.flops import model_flops_6n, model_flops_megatron

    return {
        "name": spec.name,
        "family": spec.family,
        "source": spec.source,
        "parameters": spec.num_parameters,
        "active_parameters": spec.num_parameters,
        "max_seq_len": spec.max_seq_len,
        "seq_len": seq_len,
        "flops_per_token": {
            "model_flops_megatron": model_flops_megatron(spec, seq_len, seq_len) / seq_len,
            "model_flops_6n": model_flops_6n(spec, seq_len) / seq_len,
        },
        "towers": [
            {
                "name": tower.name,
                "parameters": tower.num_parameters,
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
