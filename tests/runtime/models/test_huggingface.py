"""Logits equal those of `transformers` on the same random weights; weights come back unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shardwright.runtime.models import StageModule, build_stage
from shardwright.runtime.models.huggingface import (
    HuggingFaceFolder,
    load_hugging_face_,
    to_hugging_face,
)
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.parallel.shards import shard_of
from shardwright.specs import InputError, Layout, ModelSpec, Precision, TrainingSpec
from shardwright.specs.sources import resolve_model

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "initializer_range": 0.3,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {
        "vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "initializer_range": 0.3,
    }),
    "llama": ("llama", SMALL),
    "llama-3.1-rope": ("llama", SMALL | {"rope_parameters": LLAMA3_ROPE}),
    "llama-tied": ("llama", SMALL | {"tie_word_embeddings": True, "head_dim": 16}),
    "qwen2": ("qwen2", SMALL),
    "mistral": ("mistral", SMALL | {"sliding_window": 7}),
    "mistral-no-window": ("mistral", SMALL | {"sliding_window": None}),
}  # fmt: skip
SEQ_LEN = 20


@pytest.fixture(params=sorted(CONFIGS))
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, ModelSpec, Path]:
    """A random model of `transformers`, saved, and what we read from its config."""
    model_type, fields = CONFIGS[request.param]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **fields)
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for name, parameter in theirs.named_parameters():  # biases are zero to begin with
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    theirs.eval().save_pretrained(tmp_path)
    return theirs, resolve_model(str(tmp_path / "config.json")), tmp_path


def load(model: ModelSpec, folder: Path) -> StageModule:
    training = TrainingSpec(global_batch=2, seq_len=SEQ_LEN, precision=Precision.FP32)
    stage = build_stage(model, Layout.of(model, training), training, 0, ParallelGroups.alone())
    load_hugging_face_(stage.parameters(), model, HuggingFaceFolder(folder))
    return stage


def test_logits_equal(saved: tuple[Any, ModelSpec, Path]) -> None:
    theirs, model, folder = saved
    tokens = torch.randint(0, 61, (2, SEQ_LEN))
    with torch.no_grad():
        expected = theirs(tokens).logits
        logits = load(model, folder)(tokens)
    error = (logits - expected).abs().max() / expected.abs().max()
    assert error < 1e-5


def test_weights_round_trip(saved: tuple[Any, ModelSpec, Path]) -> None:
    _, model, folder = saved
    stage = load(model, folder)
    ours = {shard_of(p).name: p.detach() for p in stage.parameters()}
    exported = to_hugging_face(model, ours)
    read = HuggingFaceFolder(folder)
    assert set(exported) == set(read.names)
    for name, tensor in exported.items():
        assert torch.equal(tensor, read(name)), name


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**SMALL)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    model = resolve_model(str(tmp_path / "config.json"))
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL | {"vocab_size": 60}))
    other = tmp_path / "other"
    smaller = transformers.LlamaConfig(**SMALL | {"vocab_size": 60})
    transformers.LlamaForCausalLM(smaller).save_pretrained(other)
    with pytest.raises(InputError, match=r"embed_tokens.* \(60, 32\)"):
        load(model, other)
    fewer = transformers.LlamaConfig(**SMALL | {"num_hidden_layers": 1})
    transformers.LlamaForCausalLM(fewer).save_pretrained(other)
    with pytest.raises(InputError, match=r"no tensor model\.layers\.1"):
        load(model, other)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no readable safetensors"):
        HuggingFaceFolder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a safetensors file")
    with pytest.raises(InputError, match="no readable safetensors"):
        HuggingFaceFolder(tmp_path)
