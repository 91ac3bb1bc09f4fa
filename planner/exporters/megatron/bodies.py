"""Attention, rotary positions and MLPs as Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.exporters.exported import Findings
from shardwright.planner.exporters.megatron.arguments import Option
from shardwright.planner.exporters.megatron.versions import MegatronVersion
from shardwright.specs import ModelSpec
from shardwright.specs.bodies import (
    AttentionBlock,
    BranchBody,
    LatentAttentionBlock,
    MlpBlock,
    MoeBlock,
    RotaryPositions,
)

LLAMA3_FACTORS = (1.0, 4.0, 8192)
"""low and high frequency factor and first length that ``--use-rope-scaling`` always takes."""


def attention_options(
    body: BranchBody, model: ModelSpec, version: MegatronVersion, findings: Findings
) -> list[Option]:
    """Heads, positions and norms of one kind of attention."""
    if isinstance(body, LatentAttentionBlock):
        return [*_latent(body, findings), *_rotary(body.rotary, model, version, findings, None)]
    assert isinstance(body, AttentionBlock)
    for word in _unusual_attention(body):
        findings.refuse("attention", f"{word}, which pretrain_gpt.py has no option for")
    found: list[Option] = [("--num-attention-heads", str(body.num_heads))]
    if body.num_kv_heads != body.num_heads:
        found += [("--group-query-attention",), ("--num-query-groups", str(body.num_kv_heads))]
    if body.query_size != body.hidden_size:
        found.append(("--kv-channels", str(body.head_dim)))
    if body.qk_norm == "head":
        found.append(("--qk-layernorm",))
    if body.sliding_window is not None:
        found.append(("--window-size", f"{body.sliding_window - 1},0"))
    return [*found, *_rotary(body.rotary, model, version, findings, body.head_dim)]


def _unusual_attention(body: AttentionBlock) -> Iterator[str]:
    """What is not softmax(q k / sqrt(d)) v with projections, whole or in a window."""
    if not body.causal or body.cross:
        yield "attention sees later tokens or another tower"
    if body.qk_norm == "width" or body.qk_norm_bias or not body.qk_norm_weight:
        yield "norms of queries and keys go over all heads, have a bias or lack a scale"
    if body.sinks or body.gated or body.clip is not None or not body.key_bias:
        yield "attention has sinks, a gate, clamped values or keys without bias"
    if body.softcap is not None or body.alibi or body.relative_buckets:
        yield "scores are capped or get a bias by distance"
    if body.chunked:
        yield "attention sees its own chunk only"
    if body.scale is not None and abs(body.scale * body.head_dim**0.5 - 1) > 1e-9:
        yield f"scores are scaled by {body.scale:g}"


def _latent(body: LatentAttentionBlock, findings: Findings) -> Iterator[Option]:
    if body.bias or body.indexer is not None or not body.causal:
        findings.refuse(
            "attention", "latent attention has a bias, an indexer or no causal mask, which"
            " pretrain_gpt.py has no option for",
        )  # fmt: skip
    yield ("--num-attention-heads", str(body.num_heads))
    yield ("--multi-latent-attention",)
    if body.q_lora_rank is not None:
        yield ("--q-lora-rank", str(body.q_lora_rank))
    yield ("--kv-lora-rank", str(body.kv_lora_rank))
    yield ("--qk-head-dim", str(body.qk_nope_head_dim))
    yield ("--qk-pos-emb-head-dim", str(body.qk_rope_head_dim))
    yield ("--v-head-dim", str(body.v_head_dim))
    yield ("--qk-layernorm",)  # the norms over the low ranks


def _rotary(
    rotary: RotaryPositions | None,
    model: ModelSpec,
    version: MegatronVersion,
    findings: Findings,
    head_dim: int | None,
) -> Iterator[Option]:
    """``head_dim``: None for latent attention, whose rotating part has a size of its own."""
    if rotary is None:
        learned = model.embedding.max_positions is not None
        yield ("--position-embedding-type", "learned_absolute" if learned else "none")
        return
    if model.embedding.max_positions is not None:
        findings.refuse("positions", "positions are both rotary and learned")
    yield ("--position-embedding-type", "rope")
    yield ("--rotary-base", f"{rotary.base:.0f}")
    if rotary.base != round(rotary.base):
        findings.refuse("positions", f"the rotary base {rotary.base:g} is no whole number")
    if head_dim is not None and rotary.size is not None and rotary.size != head_dim:
        yield ("--rotary-percent", f"{rotary.size / head_dim:g}")
    if rotary.interleaved and head_dim is not None:
        yield ("--rotary-interleaved",)  # latent attention always pairs neighbours
    if head_dim is None:
        yield from _latent_scaling(rotary, findings)
    else:
        yield from _scaling(rotary, version, findings)


def _latent_scaling(rotary: RotaryPositions, findings: Findings) -> Iterator[Option]:
    if rotary.scaling not in ("none", "yarn"):
        findings.refuse("positions", f"latent attention has no rotary scaling {rotary.scaling}")
    is_yarn = rotary.scaling == "yarn"
    yield ("--rope-type", "yarn" if is_yarn else "rope")
    if not is_yarn:
        yield ("--no-rope-fusion",)  # it knows no other scaling of latent attention
    if is_yarn:
        yield ("--rotary-scaling-factor", f"{rotary.factor:g}")


def _scaling(
    rotary: RotaryPositions, version: MegatronVersion, findings: Findings
) -> Iterator[Option]:
    if rotary.scaling == "linear" and rotary.factor == round(rotary.factor):
        yield ("--rotary-seq-len-interpolation-factor", f"{rotary.factor:.0f}")
    elif rotary.scaling == "llama3":
        given = (rotary.low_freq_factor, rotary.high_freq_factor, rotary.original_max_positions)
        has_factor = version.has_attention_backend  # the two options came together
        if given != LLAMA3_FACTORS or (not has_factor and rotary.factor != 8):
            findings.refuse(
                "positions", f"rotary scaling with factors {rotary.factor:g}, {given[0]:g},"
                f" {given[1]:g} from {given[2]} positions; --use-rope-scaling has"
                f" {'' if has_factor else '8, '}1, 4 from 8192",
            )  # fmt: skip
        yield ("--use-rope-scaling",)
        if has_factor:
            yield ("--rope-scaling-factor", f"{rotary.factor:g}")
    elif rotary.scaling != "none":
        findings.refuse(
            "positions", f"rotary scaling {rotary.scaling}, which pretrain_gpt.py has no option for"
        )


_GATED = {"silu": ("--swiglu",), "gelu_quick": ("--quick-geglu",)}
_PLAIN = {"gelu_tanh": (), "gelu": ("--no-bias-gelu-fusion",), "relu_squared": ("--squared-relu",)}
"""Megatron-LM's fused GELU is the approximation by tanh, the other one is exact."""


def mlp_options(
    bodies: list[BranchBody], attention: BranchBody, findings: Findings
) -> list[Option]:
    """Widths, activation and biases; biases are all there, only those of q, k, v, or none."""
    found: list[Option] = []
    mlps = [body for body in bodies if isinstance(body, MlpBlock)]
    if mlps:
        found.append(("--ffn-hidden-size", str(mlps[0].ffn_size)))
    else:
        # An MLP that no layer has: the option's default would differ by activation.
        found.append(("--ffn-hidden-size", str(_expert_width(bodies))))
    kinds = {
        (body.activation, body.gated) for body in bodies if isinstance(body, MlpBlock | MoeBlock)
    }
    activation, gated = next(iter(kinds))
    flags = (_GATED if gated else _PLAIN).get(activation)
    if len(kinds) > 1 or flags is None:
        names = " and ".join(f"{'gated ' * gated}{name}" for name, gated in sorted(kinds))
        findings.refuse("activation", f"activation {names}, which pretrain_gpt.py does not have")
    elif flags:
        found.append(tuple(flags))
    return [*found, *_bias_options(bodies, attention, findings)]


def _expert_width(bodies: list[BranchBody]) -> int:
    return next(body.expert_size for body in bodies if isinstance(body, MoeBlock))


def _bias_options(
    bodies: list[BranchBody], attention: BranchBody, findings: Findings
) -> Iterator[Option]:
    mlps = {body.bias for body in bodies if isinstance(body, MlpBlock | MoeBlock)}
    if isinstance(attention, AttentionBlock):
        inputs, outputs = attention.qkv_bias, attention.output_bias
    else:
        inputs = outputs = False
    if mlps == {True} and inputs and outputs:
        return
    if mlps != {False} or outputs:
        findings.refuse(
            "bias", "some projections have a bias and others none; pretrain_gpt.py has biases"
            " everywhere, only on queries, keys and values, or nowhere",
        )  # fmt: skip
    yield ("--disable-bias-linear",)
    if inputs:
        yield ("--add-qkv-bias",)
