"""Models of several families, and what pretrain_gpt.py does not have."""

from __future__ import annotations

import pytest

from shardwright.specs.sources import resolve_model
from tests.planner.exporters.jobs import job_of, model_of
from tests.planner.exporters.megatron.exporting import arguments, refusal


def test_llama() -> None:
    found = arguments()
    assert found.number("--num-layers") == 12
    assert found.number("--hidden-size") == 1024
    assert found.number("--num-query-groups") == 4
    assert found.number("--ffn-hidden-size") == 4096
    assert found.text("--normalization") == "RMSNorm"
    assert found.has("--swiglu")
    assert found.has("--disable-bias-linear")
    assert found.has("--untie-embeddings-and-output-weights")
    assert found.text("--position-embedding-type") == "rope"
    assert not found.has("--kv-channels")
    assert not found.has("--num-experts")


def test_gpt2_has_biases_learned_positions_and_tied_ends() -> None:
    found = arguments("gpt2")
    assert found.text("--normalization") == "LayerNorm"
    assert found.text("--position-embedding-type") == "learned_absolute"
    assert found.number("--max-position-embeddings") == 4096
    for flag in ("--disable-bias-linear", "--swiglu", "--untie-embeddings-and-output-weights",
                 "--group-query-attention", "--no-bias-gelu-fusion"):  # fmt: skip
        assert not found.has(flag)


def test_deepseek_has_latent_attention_experts_and_prediction() -> None:
    found = arguments("deepseek_v3")
    assert found.has("--multi-latent-attention")
    assert found.number("--q-lora-rank") == 192
    assert found.number("--qk-pos-emb-head-dim") == 32
    assert found.text("--moe-layer-freq") == "([0]*3+[1]*9)"
    assert found.text("--moe-router-score-function") == "sigmoid"
    assert found.has("--moe-router-enable-expert-bias")
    assert found.number("--moe-router-num-groups") == 4
    assert found.number("--moe-shared-expert-intermediate-size") == 512
    assert found.number("--mtp-num-layers") == 1
    assert not found.has("--group-query-attention")


def test_an_older_version_lacks_prediction_and_sigmoid_routers() -> None:
    words = refusal("deepseek_v3", "core_r0.9.0")
    assert "multi-token prediction" in words
    assert "sigmoid" in words


def test_positions_reach_the_sequence() -> None:
    training = job_of().training.model_copy(update={"seq_len": 2048})
    short = model_of(max_position_embeddings=2048)
    assert arguments(model=short, training=training).number("--max-position-embeddings") == 2048


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("bert-base-uncased", "decoders only"),
        ("t5-base", "decoders only"),
        ("llava-1.5-7b", "decoders only"),
        ("mamba2-2.7b", "a layer of state_space"),
        ("bloom-176b", "a norm follows the embedding"),
        ("gemma-2-9b", "a norm after a branch"),
        ("gpt-j-6b", "parallel branches"),
        ("falcon-40b", "parallel branches"),
        ("gpt-oss-20b", "2 kinds of attention"),
        ("llama-4-scout", "2 kinds of attention"),
        ("command-r-v01", "parallel branches"),
    ],
)
def test_what_it_does_not_have_is_refused(name: str, word: str) -> None:
    model = resolve_model(name)
    training = job_of().training.model_copy(update={"seq_len": 512})
    assert word in refusal(model=model, training=training)


@pytest.mark.parametrize(
    "name",
    ["llama-3.1-405b", "llama-2-70b", "qwen2-72b", "qwen2.5-7b", "qwen3-32b", "qwen3-235b-a22b",
     "mixtral-8x22b", "deepseek-v2", "deepseek-v3", "gpt-3-175b", "mistral-7b", "phi-3-mini-4k",
     "smollm2-1.7b"],
)  # fmt: skip
def test_presets_that_it_has(name: str) -> None:
    model = resolve_model(name)
    training = job_of().training.model_copy(update={"seq_len": 2048})
    found = arguments(model=model, training=training, dp=8, zero=1)
    assert found.number("--num-layers") == model.decoder.num_layers
