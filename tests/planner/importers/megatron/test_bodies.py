"""Attention, MLPs and experts against what Megatron-LM builds."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.megatron.bodies import (
    activation_of,
    attention_of,
    ffn_size,
    mlp_of,
    moe_of,
    norm_of,
    num_kv_heads,
    position_kind,
)
from shardwright.specs import InputError
from shardwright.specs.bodies import AttentionBlock, LatentAttentionBlock
from tests.planner.importers.megatron.scripts import arguments_of

BASE = "--num-layers 2 --hidden-size 4096 --num-attention-heads 32"


def test_biases_are_everywhere_on_queries_or_nowhere() -> None:
    cases = {"": (True, True, True), " --disable-bias-linear": (False, False, False),
             " --disable-bias-linear --add-qkv-bias": (True, False, False)}  # fmt: skip
    for more, wanted in cases.items():
        arguments = arguments_of(BASE + more)
        attention = attention_of(arguments, causal=True)
        assert isinstance(attention, AttentionBlock)
        found = (attention.qkv_bias, attention.output_bias, mlp_of(arguments).bias)
        assert found == wanted


def test_groups_count_only_with_their_flag() -> None:
    assert num_kv_heads(arguments_of(BASE + " --num-query-groups 8"), 32) == 32
    assert num_kv_heads(
        arguments_of(BASE + " --group-query-attention --num-query-groups 8"), 32) == 8  # fmt: skip
    assert num_kv_heads(arguments_of(BASE + " --num-key-value-heads 4"), 32) == 4


def test_widths_and_activations() -> None:
    assert ffn_size(arguments_of(BASE)) == 16384
    assert ffn_size(arguments_of(BASE + " --swiglu")) == 10880
    assert activation_of(arguments_of(BASE)) == ("gelu_tanh", False)
    assert activation_of(arguments_of(BASE + " --swiglu")) == ("silu", True)
    assert activation_of(arguments_of(BASE + " --squared-relu")) == ("relu_squared", False)


def test_norms() -> None:
    assert norm_of(arguments_of(BASE)).bias
    rms = norm_of(arguments_of(BASE + " --normalization RMSNorm --norm-epsilon 1e-6"))
    assert (rms.type, rms.bias, rms.epsilon) == ("rms_norm", False, 1e-6)


def test_positions() -> None:
    assert position_kind(arguments_of(BASE)) == "learned_absolute"
    assert position_kind(arguments_of(BASE + " --use-rotary-position-embeddings")) == "rope"
    attention = attention_of(
        arguments_of(BASE + " --position-embedding-type rope --rotary-base 500000"
                     " --use-rope-scaling --rotary-percent 0.5"), causal=True,
    )  # fmt: skip
    assert isinstance(attention, AttentionBlock)
    assert attention.rotary is not None
    assert (attention.rotary.base, attention.rotary.size) == (500000, 64)
    assert (attention.rotary.scaling, attention.rotary.factor) == ("llama3", 8)


def test_latent_attention_has_megatrons_defaults() -> None:
    attention = attention_of(
        arguments_of(BASE + " --multi-latent-attention --q-lora-rank 1536"), causal=True
    )
    assert isinstance(attention, LatentAttentionBlock)
    assert (attention.q_lora_rank, attention.kv_lora_rank) == (1536, 32)
    assert (attention.qk_nope_head_dim, attention.qk_rope_head_dim) == (128, 64)


def test_experts() -> None:
    block = moe_of(
        arguments_of(
            BASE + " --swiglu --num-experts 64 --moe-ffn-hidden-size 1408 --moe-router-topk 6"
            " --moe-shared-expert-intermediate-size 2816 --moe-router-score-function sigmoid"
            " --moe-router-enable-expert-bias --disable-bias-linear"
        )
    )
    assert (block.expert_size, block.top_k, block.shared_size) == (1408, 6, 2816)
    assert (block.router, block.correction_bias, block.bias) == ("sigmoid", True, False)
    assert moe_of(arguments_of(BASE + " --num-experts 8")).top_k == 2
    with pytest.raises(InputError, match="exceeds"):
        moe_of(arguments_of(BASE + " --num-experts 4 --moe-router-topk 8"))
