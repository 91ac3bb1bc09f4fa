"""Attention, MLPs, experts and norms of Megatron-LM's arguments."""

from __future__ import annotations

from typing import Literal

from shardwright.planner.importers.megatron.arguments import Arguments
from shardwright.specs import InputError
from shardwright.specs.bodies import (
    Activation,
    AttentionBlock,
    LatentAttentionBlock,
    MlpBlock,
    MoeBlock,
    NormBlock,
    RopeScaling,
    RotaryPositions,
)


def _count(arguments: Arguments, name: str, default: int) -> int:
    return arguments.count(name) or default


def hidden_size(arguments: Arguments) -> int:
    return _count(arguments, "hidden-size", 1)


def has_biases(arguments: Arguments) -> bool:
    """Whether linear layers have biases."""
    return not (arguments.has("disable-bias-linear") or arguments.has("disable-bias-attn-fc"))


def norm_of(arguments: Arguments) -> NormBlock:
    kind = (arguments.text("normalization") or "LayerNorm").lower()
    is_rms = kind in ("rmsnorm", "rms_norm", "rms")
    return NormBlock(
        type="rms_norm" if is_rms else "layer_norm",
        hidden_size=hidden_size(arguments),
        bias=not is_rms,
        epsilon=arguments.number("norm-epsilon", 1e-5) or 1e-5,
        unit_offset=arguments.has("apply-layernorm-1p"),
    )


def num_kv_heads(arguments: Arguments, heads: int) -> int:
    """Query groups count only with ``--group-query-attention``, but in Megatron-DeepSpeed."""
    groups = arguments.count("num-query-groups")
    is_grouped = arguments.has("group-query-attention") or "num-key-value-heads" in arguments.given
    if not is_grouped:
        return heads
    return groups or 1


def attention_of(arguments: Arguments, *, causal: bool) -> AttentionBlock | LatentAttentionBlock:
    """The attention of every layer; raises `InputError` for heads that do not divide."""
    if arguments.has("multi-latent-attention"):
        return _latent(arguments, causal=causal)
    hidden = hidden_size(arguments)
    heads = _count(arguments, "num-attention-heads", 1)
    if hidden % heads and not arguments.has("kv-channels"):
        raise InputError(
            f"--hidden-size {hidden} is not a multiple of --num-attention-heads {heads}",
            fix="correct the script, or give --kv-channels",
        )
    groups = num_kv_heads(arguments, heads)
    if heads % groups:
        raise InputError(
            f"--num-attention-heads {heads} is not a multiple of --num-query-groups {groups}",
            fix="correct the script",
        )
    size = arguments.count("kv-channels") or hidden // heads
    biases = has_biases(arguments)
    is_rms = norm_of(arguments).type == "rms_norm"
    return AttentionBlock(
        hidden_size=hidden, num_heads=heads, num_kv_heads=groups, head_dim=size,
        qkv_bias=biases or arguments.has("add-qkv-bias"), output_bias=biases,
        rotary=_rotary(arguments, size), causal=causal, sliding_window=_window(arguments),
        qk_norm="head" if arguments.has("qk-layernorm") else "none",
        qk_norm_bias=arguments.has("qk-layernorm") and not is_rms,
        alibi=arguments.text("position-embedding-type") == "alibi",
        gated=arguments.has("attention-output-gate"),
    )  # fmt: skip


def _window(arguments: Arguments) -> int | None:
    """``4095,0`` or ``(4095, 0)``: so many tokens to the left, and the token itself."""
    text = (arguments.text("window-size") or "").strip("()[] ").partition(",")[0].strip()
    return int(text) + 1 if text.isdigit() and len(text) < 10 else None


def position_kind(arguments: Arguments) -> str:
    """``learned_absolute``, ``rope``, ``none`` or ``alibi``. Latent attention rotates parts of its
    own, and trains without learned positions where none are asked for."""
    if arguments.has("use-rotary-position-embeddings"):
        return "rope"
    kind = arguments.text("position-embedding-type")
    if kind is not None:
        return {"rotary": "rope", "mrope": "rope", "yarn": "rope", "absolute": "learned_absolute",
                "learned": "learned_absolute", "relative": "none"}.get(kind, kind)  # fmt: skip
    if arguments.has("no-position-embedding"):
        return "none"
    return "rope" if arguments.has("multi-latent-attention") else "learned_absolute"


def _rotary(arguments: Arguments, size: int) -> RotaryPositions | None:
    if position_kind(arguments) != "rope":
        return None
    percent = arguments.number("rotary-percent", 1.0)
    factor = arguments.number("rotary-seq-len-interpolation-factor", 1.0)
    scaling: RopeScaling = "linear" if factor > 1 else "none"
    if arguments.has("use-rope-scaling"):
        scaling, factor = "llama3", arguments.number("rope-scaling-factor", 8.0)
    elif arguments.text("position-embedding-type") == "yarn":
        scaling, factor = "yarn", arguments.number("rotary-scaling-factor", 1.0)
    return RotaryPositions(
        base=arguments.number("rotary-base", 10000.0) or 10000.0,
        size=None if percent >= 1 else max(2, int(size * percent) // 2 * 2),
        interleaved=arguments.has("rotary-interleaved"), scaling=scaling, factor=max(factor, 1e-6),
        original_max_positions=_first_length(arguments, scaling),
    )  # fmt: skip


def _first_length(arguments: Arguments, scaling: RopeScaling) -> int:
    """The longest sequence before scaling; Llama 3's is 8192."""
    longest = arguments.count("max-position-embeddings") or arguments.count("seq-length")
    return 8192 if scaling == "llama3" or longest is None else longest


def _latent(arguments: Arguments, *, causal: bool) -> LatentAttentionBlock:
    """Defaults of ``--kv-lora-rank`` 32 and of the three sizes of heads 128, 64 and 128."""
    is_yarn = (arguments.text("rope-type") or "yarn") == "yarn"
    return LatentAttentionBlock(
        hidden_size=hidden_size(arguments),
        num_heads=_count(arguments, "num-attention-heads", 1),
        q_lora_rank=arguments.count("q-lora-rank"),
        kv_lora_rank=_count(arguments, "kv-lora-rank", 32),
        qk_nope_head_dim=_count(arguments, "qk-head-dim", 128),
        qk_rope_head_dim=_count(arguments, "qk-pos-emb-head-dim", 64),
        v_head_dim=_count(arguments, "v-head-dim", 128),
        rotary=RotaryPositions(
            base=arguments.number("rotary-base", 10000.0) or 10000.0,
            interleaved=True,
            scaling="yarn" if is_yarn else "none",
            factor=arguments.number("rotary-scaling-factor", 40.0) if is_yarn else 1.0,
            original_max_positions=4096 if is_yarn else _first_length(arguments, "none"),
        ),
        causal=causal,
    )


def activation_of(arguments: Arguments) -> tuple[Activation, bool]:
    """The activation, and whether it is gated. The fused GELU is the approximation by tanh."""
    glu = arguments.text("glu-activation")
    if arguments.has("swiglu") or glu == "swiglu":
        return "silu", True
    if arguments.has("quick-geglu"):
        return "gelu_quick", True
    if glu is not None or arguments.has("geglu"):
        gates: dict[str | None, Activation] = {"reglu": "relu"}
        return gates.get(glu, "gelu"), True
    if arguments.has("squared-relu"):
        return "relu_squared", False
    return ("gelu" if arguments.has("no-bias-gelu-fusion") else "gelu_tanh"), False


def ffn_size(arguments: Arguments) -> int:
    """``--ffn-hidden-size``, or Megatron-LM's default for the activation."""
    stated = arguments.count("ffn-hidden-size")
    if stated is not None:
        return stated
    hidden = hidden_size(arguments)
    if arguments.has("swiglu"):
        return int(4 * hidden * 2 / 3 / 64) * 64 or 64
    return 4 * hidden


def mlp_of(arguments: Arguments) -> MlpBlock:
    activation, gated = activation_of(arguments)
    return MlpBlock(
        hidden_size=hidden_size(arguments), ffn_size=ffn_size(arguments), activation=activation,
        gated=gated, bias=has_biases(arguments),
    )  # fmt: skip


def is_megatron_deepspeed(arguments: Arguments) -> bool:
    """Whether experts are Megatron-DeepSpeed's: in every second layer, one for each token."""
    return arguments.has("deepspeed") or "moe-expert-parallel-size" in arguments.given


def moe_of(arguments: Arguments) -> MoeBlock:
    """The experts of a layer; raises `InputError` where more are chosen than there are."""
    activation, gated = activation_of(arguments)
    experts = _count(arguments, "num-experts", 1)
    chosen = _count(arguments, "moe-router-topk", 1 if is_megatron_deepspeed(arguments) else 2)
    if chosen > experts:
        raise InputError(
            f"--moe-router-topk {chosen} exceeds --num-experts {experts}", fix="correct the script"
        )
    score = arguments.text("moe-router-score-function") or "softmax"
    router: Literal["softmax", "sigmoid"] = "softmax" if score == "softmax" else "sigmoid"
    groups = _count(arguments, "moe-router-num-groups", 1)
    if experts % groups:
        raise InputError(
            f"--num-experts {experts} is not a multiple of --moe-router-num-groups {groups}",
            fix="correct the script",
        )
    capacity = arguments.number("moe-expert-capacity-factor", 0.0)
    return MoeBlock(
        hidden_size=hidden_size(arguments),
        expert_size=arguments.count("moe-ffn-hidden-size") or ffn_size(arguments),
        num_experts=experts, top_k=chosen, activation=activation, gated=gated,
        bias=has_biases(arguments),
        shared_size=arguments.count("moe-shared-expert-intermediate-size"),
        shared_gate=arguments.has("moe-shared-expert-gate"), router=router,
        correction_bias=arguments.has("moe-router-enable-expert-bias"),
        num_groups=groups, top_groups=_count(arguments, "moe-router-group-topk", 1),
        latent_size=arguments.count("moe-latent-size"),
        capacity_factor=capacity if capacity > 0 else None,
    )  # fmt: skip
