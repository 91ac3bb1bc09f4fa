"""FLOP counts against what Megatron-LM's own function answered."""

from __future__ import annotations

import pytest

from shardwright.cost_models.blocks.operations import (
    Attention,
    BlockBooks,
    Collective,
    Elementwise,
    Matmul,
)
from shardwright.cost_models.flops import (
    executed_flops,
    model_flops_6n,
    model_flops_megatron,
    operations_flops,
)
from shardwright.specs import ModelSpec, TrainingSpec
from shardwright.specs.sources import model_from_config, preset, resolve_model


def gpt3_with_padded_vocabulary() -> ModelSpec:
    config = preset("gpt-3-175b").config | {"vocab_size": 51200}
    return model_from_config(config, name="gpt-3", source="a test").spec


@pytest.mark.parametrize(
    ("model", "global_batch", "seq_len", "flops"),
    [
        (resolve_model("llama-3-8b"), 1, 8192, 421_645_529_382_912),
        (gpt3_with_padded_vocabulary(), 1536, 2048, 3.3405978001601987e18),
        (resolve_model("mixtral-8x7b"), 1, 4096, 326_477_644_038_144),
        (resolve_model("deepseek-v3"), 1, 4096, 1_064_931_126_411_264),
    ],
)
def test_megatrons_own_figures(
    model: ModelSpec, global_batch: int, seq_len: int, flops: float
) -> None:
    training = TrainingSpec(global_batch=global_batch, seq_len=seq_len)
    assert model_flops_megatron(model, training) == flops


def test_attention_grows_with_the_square_of_the_sequence() -> None:
    model = resolve_model("gpt2")
    at_512, at_1024 = (
        model_flops_megatron(model, TrainingSpec(global_batch=batch, seq_len=seq_len))
        for batch, seq_len in ((2, 512), (1, 1024))
    )
    assert at_1024 - at_512 == 6 * 12 * 768 * (1024**2 - 2 * 512**2)


def test_the_rule_of_thumb() -> None:
    model = resolve_model("gpt2")
    training = TrainingSpec(global_batch=4, seq_len=1024)
    assert model_flops_6n(model, training) == 6 * 124_439_808 * 4096


def test_the_rule_of_thumb_counts_active_parameters_of_experts() -> None:
    model = resolve_model("mixtral-8x7b")
    training = TrainingSpec(global_batch=1, seq_len=1024)
    assert model_flops_6n(model, training) == 6 * 12_879_925_248 * 1024


def test_bidirectional_attention_counts_the_whole_square() -> None:
    model = resolve_model("bert-base-uncased")
    at_128, at_256 = (
        model_flops_megatron(model, TrainingSpec(global_batch=1, seq_len=seq_len))
        for seq_len in (128, 256)
    )
    linear = at_128 - 3 * 2 * 768 * 768 - 3 * 12 * 4 * 768 * 128**2
    assert at_256 - 3 * 2 * 768 * 768 == 2 * linear + 3 * 12 * 4 * 768 * 256**2


def test_images_count_by_their_own_tokens() -> None:
    model = resolve_model("vit-base-patch16-224")
    training = [TrainingSpec(global_batch=1, seq_len=seq_len) for seq_len in (1, 197)]
    assert model_flops_megatron(model, training[0]) == model_flops_megatron(model, training[1])
    # 17.6 GFLOP forward (Dosovitskiy et al. count multiply-adds), of ViT-B/16 at 224 x 224.
    assert model_flops_megatron(model, training[0]) / 3 == pytest.approx(35.1e9, rel=0.01)


def test_a_state_space_counts_projections_and_scan() -> None:
    model = resolve_model("mamba2-2.7b")
    training = TrainingSpec(global_batch=1, seq_len=16)
    inner, state = 5120, 128
    layer = 2 * 2560 * (2 * inner + 2 * state + 80 + inner) + 7 * inner * state
    per_token = 64 * layer + 2 * 2560 * 50288
    assert model_flops_megatron(model, training) == 3 * 16 * per_token


def test_cross_attention_reads_the_other_tower() -> None:
    model = resolve_model("t5-small")
    flops = model_flops_megatron(model, TrainingSpec(global_batch=1, seq_len=1))
    weights = model.num_parameters - 18 * 512 - 14 * 512 - 2 * 32 * 8  # norms, distances
    encoder_core, decoder_core = 6 * 4 * 512, 6 * (2 * 512 + 4 * 512)
    assert flops == 3 * (2 * weights + encoder_core + decoder_core)


def test_executed_flops_are_summed_over_passes_and_kinds() -> None:
    matmul = Matmul("up", m=2, n=3, k=5, dtype="fp32")
    attention = Attention("core", 1, 2, 4, 4, 8, causal=True, backward=True, dtype="fp32")
    free = (
        Elementwise("rms_norm", 1000, "fp32"),
        Collective("gather", "all_gather", "tp", 1000, "fp32"),
    )
    books = BlockBooks(
        name="mlp", forward=(matmul, *free), backward_input=(matmul, attention),
        backward_weight=(matmul,), parameters=(), saved=(), output_bytes=0,
        unsaved_forward_bytes=0, forward_transient_bytes=0, backward_transient_bytes=0,
        input_transient_bytes=0, deferred=(),
    )  # fmt: skip
    assert operations_flops(books.forward) == 60
    assert executed_flops([books, books]) == 2 * (3 * 60 + 5 * 2 * 2 * 4 * 4 * 8)
