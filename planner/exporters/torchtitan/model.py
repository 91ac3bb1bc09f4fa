"""Models of torchtitan with a plan's sizes: a flavor that it has, or a file that registers one."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.planner.exporters.exported import Findings, Job
from shardwright.planner.exporters.torchtitan.facts import FLAVOR, FLAVORS, MODEL_NAME, MODULE
from shardwright.specs import ModelSpec
from shardwright.specs.blocks import LayerBlock
from shardwright.specs.bodies import (
    AttentionBlock,
    BranchBody,
    LatentAttentionBlock,
    MlpBlock,
    MoeBlock,
    RotaryPositions,
)
from shardwright.specs.sources import model_from_config
from shardwright.specs.sources.presets import preset

_NO_SCALING = RotaryPositions(base=1.0)


@dataclass(frozen=True, slots=True)
class TitanModel:
    """What a configuration says of its model."""

    family: str
    """``llama3``, ``qwen3`` or ``deepseek_v3``."""
    name: str
    flavor: str
    module: str | None
    """Text of the file that defines it; None for a flavor of torchtitan's own."""


def titan_model(job: Job, findings: Findings) -> TitanModel | None:
    """The model, or None with the reasons in ``findings``."""
    model = job.model
    known = _flavor_of(model)
    if known is not None and not (known[0] == "deepseek_v3" and job.layout.cp > 1):
        # Its deepseek_v3 flavors use flex attention, which context parallelism refuses.
        return TitanModel(known[0], known[0], known[1], None)
    before = len(findings.refused)
    family = _family_of(model, findings)
    if family is None:
        return None
    arguments = _ARGUMENTS[family](model, findings)
    if len(findings.refused) > before:
        return None
    return TitanModel(family, MODEL_NAME, FLAVOR, module_text(family, arguments))


def _flavor_of(model: ModelSpec) -> tuple[str, str] | None:
    for family, flavor in FLAVORS:
        if family in _ARGUMENTS and flavor_model(family, flavor).towers == model.towers:
            return family, flavor
    return None


@functools.cache
def flavor_model(name: str, flavor: str) -> ModelSpec:
    """The model of a flavor: a preset without layers that only multi-token prediction uses.

    Raises:
        KeyError: no such flavor is known.
    """
    slug = FLAVORS[name, flavor]
    config = {key: value for key, value in preset(slug).config.items() if "nextn" not in key}
    return model_from_config(config, name=slug, source=f"torchtitan {name} {flavor}").spec


def _family_of(model: ModelSpec, findings: Findings) -> str | None:
    """Which of its models has layers of that kind; refuses what none has."""
    kinds = {block.kind for block in model.decoder.blocks}
    if "mtp" in kinds:
        findings.refuse(
            "model", "torchtitan has no multi-token prediction", "a model without prediction layers"
        )
    if len(model.towers) > 1 or not kinds <= {"embedding", "layer", "norm", "head", "mtp"}:
        findings.refuse("model", f"torchtitan trains decoders, and {model.name} has more")
        return None
    found = {_family_of_layer(layer) for layer in model.decoder.layers()}
    found.discard("any")
    family = next(iter(found)) if len(found) == 1 else "llama3" if not found else None
    if family is None:
        findings.refuse(
            "model", f"layers of {model.name} are none of llama3's, qwen3's or deepseek_v3's, which"
            " torchtitan can build in any size",
        )  # fmt: skip
        return None
    for word in _unusual_ends(model, family):
        findings.refuse("model", f"{word}, which torchtitan's {family} does not have")
    return family


def _family_of_layer(layer: LayerBlock) -> str | None:
    bodies = [branch.body for branch in layer.branches]
    plain = (
        len(bodies) == 2
        and not layer.parallel
        and all(
            branch.pre_norm is not None
            and branch.pre_norm.type == "rms_norm"
            and not branch.pre_norm.unit_offset
            and branch.post_norm is None
            and branch.scale is None
            and not branch.learned_scale
            for branch in layer.branches
        )
    )
    if not plain or not _is_swiglu(bodies[1]):
        return None
    if isinstance(bodies[0], LatentAttentionBlock):
        is_plain = bodies[0].indexer is None and not bodies[0].bias and bodies[0].causal
        return "deepseek_v3" if is_plain else None
    if not isinstance(bodies[0], AttentionBlock) or not _is_plain_attention(bodies[0]):
        return None
    if bodies[0].qk_norm == "head":
        return "qwen3"
    if bodies[0].query_size == bodies[0].hidden_size and isinstance(bodies[1], MlpBlock):
        return "llama3"
    return None


def _is_swiglu(body: BranchBody) -> bool:
    if isinstance(body, MlpBlock | MoeBlock):
        return body.activation == "silu" and body.gated and not body.bias
    return False


def _is_plain_attention(body: AttentionBlock) -> bool:
    plain = AttentionBlock(
        hidden_size=body.hidden_size, num_heads=body.num_heads, num_kv_heads=body.num_kv_heads,
        head_dim=body.head_dim, qkv_bias=False, output_bias=False, rotary=body.rotary,
        qk_norm=body.qk_norm,
    )  # fmt: skip
    usual_scale = body.scale is None or abs(body.scale * body.head_dim**0.5 - 1) < 1e-9
    is_rotary = body.rotary is not None and body.rotary.size in (None, body.head_dim)
    return usual_scale and is_rotary and body.model_copy(update={"scale": None}) == plain


def _unusual_ends(model: ModelSpec, family: str) -> Iterator[str]:
    embedding, head = model.embedding, model.head
    if head.tied and family != "qwen3":
        yield "tied embeddings"
    if embedding.model_copy(update={"vocab_size": 1, "hidden_size": 1}).model_dump(
        exclude={"kind"}, exclude_defaults=True
    ) != {"vocab_size": 1, "hidden_size": 1}:
        yield "an embedding with positions, norms or scales"
    rest = head.model_dump(exclude={"kind", "tied"}, exclude_defaults=True)
    if set(rest) != {"vocab_size", "hidden_size"}:
        yield "a head with a bias, a transform or scaled logits"


def _one(model: ModelSpec, kind: type, findings: Findings, what: str) -> Any:
    """The one body of a kind in all layers; None where no layer has one."""
    bodies = dict.fromkeys(
        branch.body
        for layer in model.decoder.layers()
        for branch in layer.branches
        if isinstance(branch.body, kind)
    )
    if len(bodies) > 1:
        findings.refuse("model", f"layers differ in their {what}; torchtitan has one for all")
    return next(iter(bodies), None)


def _common(model: ModelSpec) -> dict[str, Any]:
    return {
        "dim": model.decoder.hidden_size,
        "n_layers": model.decoder.num_layers,
        "vocab_size": model.embedding.vocab_size,
        "norm_eps": model.final_norm.epsilon,
        "max_seq_len": model.max_seq_len or 131072,
    }


def _llama3(model: ModelSpec, findings: Findings) -> dict[str, Any]:
    attention = _one(model, AttentionBlock, findings, "attention")
    mlp = _one(model, MlpBlock, findings, "MLP")
    rotary = attention.rotary or _NO_SCALING
    if rotary.scaling not in ("none", "llama3") or rotary.interleaved:
        findings.refuse("model", f"rotary scaling {rotary.scaling}, which llama3 does not have")
    is_scaled = rotary.scaling == "llama3"
    return {
        **_common(model),
        "n_heads": attention.num_heads,
        "n_kv_heads": attention.num_kv_heads,
        **_ffn_size(model.decoder.hidden_size, mlp.ffn_size),
        "rope_theta": rotary.base,
        "rope_scaling_args": {
            "scaling_factor": rotary.factor if is_scaled else 1.0,
            "low_freq_factor": rotary.low_freq_factor if is_scaled else 1.0,
            "high_freq_factor": rotary.high_freq_factor if is_scaled else 4.0,
            "original_max_position_embeddings": rotary.original_max_positions,
        },
    }


def _ffn_size(hidden: int, ffn_size: int) -> dict[str, Any]:
    """Its width is 8/3 of the hidden size, times a factor, rounded up to a multiple.

    With the width itself as the multiple, any factor that keeps below it gives exactly it.
    """
    usual = int(2 * 4 * hidden / 3)
    factor = None if usual <= ffn_size else ffn_size / usual / 2
    return {"multiple_of": ffn_size, "ffn_dim_multiplier": factor}


def _qwen3(model: ModelSpec, findings: Findings) -> dict[str, Any]:
    attention = _one(model, AttentionBlock, findings, "attention")
    mlp, experts = (
        _one(model, MlpBlock, findings, "MLP"),
        _one(model, MoeBlock, findings, "experts"),
    )
    rotary = attention.rotary or _NO_SCALING
    if rotary.scaling != "none" or rotary.interleaved:
        findings.refuse("model", f"rotary scaling {rotary.scaling}, which qwen3 does not have")
    if mlp is not None and experts is not None:
        findings.refuse("model", "some layers have experts and others none; qwen3 has one kind")
    found = {
        **_common(model),
        "n_heads": attention.num_heads,
        "n_kv_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "hidden_dim": mlp.ffn_size if mlp is not None else experts.expert_size,
        "rope_theta": rotary.base,
        "qk_norm": True,
        "enable_weight_tying": model.head.tied,
    }
    if experts is not None:
        found |= {"moe_enabled": True, "moe_inter_dim": experts.expert_size,
                  "moe_args": _experts(experts, findings)}  # fmt: skip
    return found


def _deepseek(model: ModelSpec, findings: Findings) -> dict[str, Any]:
    attention = _one(model, LatentAttentionBlock, findings, "attention")
    mlp, experts = (
        _one(model, MlpBlock, findings, "MLP"),
        _one(model, MoeBlock, findings, "experts"),
    )
    rotary = attention.rotary or _NO_SCALING
    if rotary.scaling not in ("none", "yarn"):
        findings.refuse(
            "model", f"rotary scaling {rotary.scaling}, which deepseek_v3 does not have"
        )
    is_scaled = rotary.scaling == "yarn"
    found = {
        **_common(model),
        "inter_dim": mlp.ffn_size if mlp is not None else experts.expert_size,
        "moe_inter_dim": experts.expert_size if experts is not None else mlp.ffn_size,
        "n_dense_layers": _num_dense(model, findings),
        "n_heads": attention.num_heads,
        "q_lora_rank": attention.q_lora_rank or 0,
        "kv_lora_rank": attention.kv_lora_rank,
        "qk_nope_head_dim": attention.qk_nope_head_dim,
        "qk_rope_head_dim": attention.qk_rope_head_dim,
        "v_head_dim": attention.v_head_dim,
        "rope_theta": rotary.base,
        "original_seq_len": rotary.original_max_positions
        if is_scaled
        else model.max_seq_len or 131072,
        "rope_factor": rotary.factor if is_scaled else 1.0,
    }
    if experts is not None:
        found["moe_args"] = _experts(experts, findings)
    return found


def _num_dense(model: ModelSpec, findings: Findings) -> int:
    has = [
        any(isinstance(b.body, MoeBlock) for b in layer.branches)
        for layer in model.decoder.layers()
    ]
    first = has.index(True) if True in has else len(has)
    if not all(has[first:]):
        findings.refuse(
            "model", "layers without experts follow others; they come first in torchtitan"
        )
    return first


def _experts(body: MoeBlock, findings: Findings) -> dict[str, Any]:
    shared = body.shared_size or 0
    if shared % body.expert_size:
        findings.refuse(
            "model", f"shared experts of {shared} are no multiple of an expert's {body.expert_size}"
        )
    if body.latent_size or body.capacity_factor or body.shared_gate or body.router_bias:
        findings.refuse(
            "model", "experts have a latent size, a capacity, a gate or a router bias, which"
            " torchtitan does not have",
        )  # fmt: skip
    findings.note(
        "router: whether its weights are normalised and scaled is torchtitan's default for such a"
        " model; a plan does not state it"
    )
    is_sigmoid = body.router == "sigmoid"
    return {
        "num_experts": body.num_experts,
        "num_shared_experts": shared // body.expert_size,
        "top_k": body.top_k,
        "score_func": body.router,
        "route_norm": is_sigmoid or shared == 0,
        "score_before_experts": False,
        "num_expert_groups": body.num_groups if body.num_groups > 1 else None,
        "num_limited_groups": body.top_groups if body.num_groups > 1 else None,
        "load_balance_coeff": 1e-3 if body.correction_bias else None,
    }


_ARGUMENTS = {"llama3": _llama3, "qwen3": _qwen3, "deepseek_v3": _deepseek}
CLASSES = {
    "llama3": "TransformerModelArgs",
    "qwen3": "Qwen3ModelArgs",
    "deepseek_v3": "DeepSeekV3ModelArgs",
}
"""The class of a family's sizes."""
_INNER = {"rope_scaling_args": "RoPEScalingArgs", "moe_args": "MoEArgs"}


def module_text(family: str, arguments: Mapping[str, Any]) -> str:
    """A module that registers a family of torchtitan's with other sizes."""
    inner = [_INNER[name] for name in arguments if name in _INNER]
    names = sorted({CLASSES[family], *(name for name in inner if name == "RoPEScalingArgs")})
    lines = [
        f'"""{family} of torchtitan with the sizes of a plan; see experimental.custom_import."""',
        "",
        "import dataclasses",
        "",
        f"from torchtitan.models.{family} import get_train_spec",
        f"from torchtitan.models.{family}.model.args import {', '.join(names)}",
        *(["from torchtitan.models.moe import MoEArgs"] if "MoEArgs" in inner else []),
        "from torchtitan.protocols.train_spec import register_train_spec",
        "",
        f"SIZES = {CLASSES[family]}(",
        *(f"    {name}={_python(name, value)}," for name, value in arguments.items()),
        ")",
        f'SPEC = dataclasses.replace(get_train_spec(), model_args={{"{FLAVOR}": SIZES}})',
        f'register_train_spec("{MODEL_NAME}", SPEC)',
    ]
    return "\n".join(lines) + "\n"


def _python(name: str, value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{key}={item!r}" for key, item in value.items())
        return f"{_INNER[name]}({inner})"
    return repr(value)


def module_file() -> str:
    """Beside the configuration."""
    return f"{MODULE}.py"
