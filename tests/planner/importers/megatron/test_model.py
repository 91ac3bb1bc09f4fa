"""Whole models against published parameter counts."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.megatron.model import (
    expert_layers,
    has_experts,
    is_encoder,
    is_encoder_decoder,
    model_of,
)
from shardwright.specs import InputError, ModelSpec
from shardwright.specs.sources import resolve_model
from tests.planner.importers.megatron.scripts import arguments_of

LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32"
    " --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192"
    " --position-embedding-type rope --rotary-base 500000 --swiglu --normalization RMSNorm"
    " --disable-bias-linear --untie-embeddings-and-output-weights --padded-vocab-size 128256"
)
DEEPSEEK = (
    "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128"
    " --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128"
    " --qk-pos-emb-head-dim 64 --v-head-dim 128 --num-experts 256 --moe-layer-freq"
    " ([0]*3+[1]*58) --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048"
    " --moe-router-topk 8 --moe-router-score-function sigmoid --moe-router-enable-expert-bias"
    " --swiglu --normalization RMSNorm --disable-bias-linear --mtp-num-layers 1"
    " --untie-embeddings-and-output-weights --padded-vocab-size 129280 --seq-length 4096"
)


def built(line: str, program: str = "pretrain_gpt.py") -> ModelSpec:
    shape = model_of(arguments_of(line), program, "x")
    assert shape.spec is not None
    return shape.spec


def test_published_models_have_their_published_parameters() -> None:
    assert built(LLAMA).num_parameters == resolve_model("llama-3-8b").num_parameters
    deepseek, published = built(DEEPSEEK), resolve_model("deepseek-v3")
    assert deepseek.num_parameters == published.num_parameters
    assert deepseek.num_prediction_parameters == published.num_prediction_parameters


def test_gpt_has_learned_positions_a_tied_head_and_a_padded_vocabulary() -> None:
    model = built(
        "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048"
        " --max-position-embeddings 2048 --tensor-model-parallel-size 8"
    )
    assert model.head.tied
    assert model.embedding.max_positions == 2048
    assert model.vocab_size == 51200
    assert model.num_parameters == 174_615_846_912


def test_bloom_of_megatron_deepspeed() -> None:
    model = built(
        "--num-layers 70 --hidden-size 14336 --num-attention-heads 112 --seq-length 2048"
        " --max-position-embeddings 2048 --embed-layernorm --position-embedding-type alibi"
        " --pad-vocab-size-to 250880 --deepspeed"
    )
    assert model.num_parameters == resolve_model("bloom-176b").num_parameters


def test_experts_of_megatron_deepspeed_are_in_every_second_layer() -> None:
    arguments = arguments_of("--num-experts 8 --moe-expert-parallel-size 4")
    assert expert_layers(arguments, 4) == [False, True, False, True]


def test_what_lacks_is_named() -> None:
    shape = model_of(arguments_of("--num-layers 4 --hidden-size 8"), "p.py", "x")
    assert shape.spec is None
    assert shape.missing == ("--num-attention-heads",)


def test_bert_sees_all_tokens_and_has_its_own_ends() -> None:
    model = built(
        "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 512"
        " --max-position-embeddings 512", "pretrain_bert.py",
    )  # fmt: skip
    assert model.decoder.name == "encoder"
    assert model.embedding.num_token_types == 2
    assert model.vocab_size == 30592
    assert {block.kind for block in model.decoder.blocks} >= {"pooler", "head"}


def test_programs_by_their_name() -> None:
    assert is_encoder("/x/pretrain_bert.py")
    assert not is_encoder("/home/albert/pretrain_gpt.py")
    assert is_encoder_decoder("pretrain_t5.py")
    assert not is_encoder_decoder("pretrain_gpt.py")


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("1", "1111"),
        ("2", "1010"),
        ("([0]*1+[1]*3)", "0111"),
        ("[0,1,0,1]", "0101"),
        ("([0,1])*2", "0101"),
        ("[1]*4", "1111"),
    ],
)
def test_which_layers_have_experts(pattern: str, wanted: str) -> None:
    arguments = arguments_of(f"--num-experts 8 --moe-layer-freq {pattern}")
    assert "".join(str(int(one)) for one in expert_layers(arguments, 4)) == wanted


def test_a_pattern_is_no_program() -> None:
    for pattern in ("__import__('os')", "[1]*99999", "[0]*2"):
        with pytest.raises(InputError, match="moe-layer-freq"):
            expert_layers(arguments_of(f"--num-experts 8 --moe-layer-freq {pattern}"), 4)


def test_experts_of_arguments_or_of_a_model() -> None:
    assert has_experts(arguments_of("--num-experts 8"), None)
    assert not has_experts(arguments_of("--num-experts 8"), resolve_model("gpt2"))
    assert has_experts(arguments_of(""), resolve_model("mixtral-8x7b"))


def test_options_that_make_another_model_than_their_sizes_are_said_so() -> None:
    shape = model_of(arguments_of(LLAMA.replace("--swiglu", "")), "p.py", "x")
    assert any("check activation" in text for text in shape.notes)
    assert not model_of(arguments_of(LLAMA), "p.py", "x").notes
