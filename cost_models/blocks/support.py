"""Which models the exact books, and the runtime's layers that they describe, cover."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.specs._base import Spec
from shardwright.specs.blocks import EmbeddingBlock, HeadBlock, LayerBlock, ResidualBranch
from shardwright.specs.bodies import AttentionBlock, MlpBlock, NormBlock
from shardwright.specs.errors import InputError
from shardwright.specs.layout import Layout
from shardwright.specs.model import ModelSpec

OWN_LACKS = (
    "cp", "ep", "offload", "selective", "partial_recompute", "loss_chunks", "compile",
    "rank_order=tp-cp-pp-dp", "reshard_after_forward=false",
)  # fmt: skip
"""`SoftwareSpec.lacks` of our own runtime: what `runtime.preflight` refuses of a layout."""

_DENSE_BLOCKS = ("embedding", "layer", "norm", "head")
_ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
_ROTARY_SCALINGS = ("none", "llama3")
_FREE = {"kind", "sliding_window", "max_positions", "repeat", "post_norm"}
"""Fields with a default that are covered at any value, or are looked at elsewhere."""


def check_supported(model: ModelSpec, layout: Layout) -> None:
    """Raise `InputError` for what neither these books nor the runtime's layers cover."""
    problems = unsupported(model, layout)
    if problems:
        raise InputError(
            f"{model.name} with this layout needs {', '.join(problems)}",
            why="layers of that kind are not built yet",
            fix="use dense pre-norm decoders with tp, pp, dp, ZeRO and full recompute",
        )


def unsupported(model: ModelSpec, layout: Layout) -> list[str]:
    """What neither these books nor the runtime's layers cover, in words."""
    return list(dict.fromkeys((*_model_problems(model), *_layout_problems(layout))))


def _layout_problems(layout: Layout) -> Iterator[str]:
    if any(entry.policy == "selective" for entry in layout.recompute):
        yield "selective recompute"
    for name in ("cp", "ep", "etp", "loss_chunks"):
        if getattr(layout, name) > 1:
            yield f"{name} = {getattr(layout, name)}"


def _model_problems(model: ModelSpec) -> Iterator[str]:
    if len(model.towers) > 1 or any(edge.kind != "tied_weight" for edge in model.edges):
        yield "several towers"
    for block in model.decoder.blocks:
        if block.kind not in _DENSE_BLOCKS:
            yield f"a block of kind {block.kind}"
        elif isinstance(block, LayerBlock):
            yield from _layer_problems(block)
        elif isinstance(block, NormBlock):
            yield from _norm_problems(block)
        elif isinstance(block, EmbeddingBlock | HeadBlock):
            yield from _beyond_defaults(block, block.kind)
    if not model.is_language_model:
        yield "a head over a vocabulary"


def _layer_problems(layer: LayerBlock) -> Iterator[str]:
    kinds = [branch.body.kind for branch in layer.branches]
    if sorted(kinds) != ["attention", "mlp"] and set(kinds) <= {"attention", "mlp"}:
        yield f"a layer with branches {kinds}"
    yield from _beyond_defaults(layer, "layers")
    for branch in layer.branches:
        yield from _branch_problems(branch)


def _branch_problems(branch: ResidualBranch) -> Iterator[str]:
    yield from _beyond_defaults(branch, "residual branches")
    if branch.pre_norm is None or branch.post_norm:
        yield "residual branches without a norm before, or with one after"
    else:
        yield from _norm_problems(branch.pre_norm)
    body = branch.body
    if not isinstance(body, AttentionBlock | MlpBlock):
        yield f"a branch of kind {body.kind}"
        return
    yield from _beyond_defaults(body, body.kind)
    if isinstance(body, MlpBlock) and body.activation not in _ACTIVATIONS:
        yield f"the activation {body.activation}"
    if isinstance(body, AttentionBlock) and body.rotary is not None:
        if body.rotary.scaling not in _ROTARY_SCALINGS:
            yield f"rotary positions with {body.rotary.scaling} scaling"
        if body.rotary.size is not None or body.rotary.interleaved:
            yield "rotary positions of part of a head or in neighbouring pairs"


def _norm_problems(norm: NormBlock) -> Iterator[str]:
    yield from _beyond_defaults(norm, "norms")
    if norm.bias != (norm.type == "layer_norm"):
        yield f"a {norm.type} {'with' if norm.bias else 'without'} bias"


def _beyond_defaults(block: Spec, where: str) -> Iterator[str]:
    """Optional fields that are not at their defaults."""
    for name, field in type(block).model_fields.items():
        optional = not field.is_required() and name not in _FREE
        if optional and getattr(block, name) != field.default:
            yield f"{where} with {name.replace('_', ' ')}"
