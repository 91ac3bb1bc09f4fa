"""Units: names, readers, and parameters that are each in one unit."""

from __future__ import annotations

import pytest
import torch

from shardwright.runtime.models import Unit, build_stage
from shardwright.runtime.parallel.shards import shard_of
from shardwright.specs import Layout, Precision, TrainingSpec
from tests.runtime.tiny_models import MODELS, tensor_parallel_groups

TRAINING = TrainingSpec(global_batch=1, seq_len=8, precision=Precision.FP32)


def units(name: str, pp: int = 1, stage: int = 0) -> tuple[Unit, ...]:
    layout = Layout.of(MODELS[name], TRAINING, pp=pp)
    groups = tensor_parallel_groups(1, pp=pp, stage=stage)
    return build_stage(MODELS[name], layout, TRAINING, stage, groups).units


@pytest.mark.parametrize(("name", "pp", "stage", "expected"), [
    ("llama", 1, 0, ["embedding", "layers.0", "layers.1", "layers.2", "head"]),
    ("gpt2", 1, 0, ["tied_embedding", "embedding", "layers.0", "layers.1", "layers.2", "head"]),
    ("gpt2", 3, 0, ["tied_embedding", "embedding", "layers.0"]),
    ("gpt2", 3, 1, ["layers.1"]),
    ("gpt2", 3, 2, ["layers.2", "tied_embedding", "head"]),
    ("llama-tied-biased", 3, 0, ["tied_embedding", "layers.0"]),
])  # fmt: skip
def test_names_in_order(name: str, pp: int, stage: int, expected: list[str]) -> None:
    found = units(name, pp, stage)
    assert [unit.unit_name for unit in found] == expected
    assert all(list(unit.parameters()) for unit in found)


def test_a_tied_weight_is_in_one_unit_and_has_two_readers() -> None:
    tied, embedding, *_, head = units("gpt2")
    assert [shard_of(p).name for p in tied.parameters()] == ["embedding.weight"]
    assert tied.readers == ((embedding, head),)
    assert [shard_of(p).name for p in embedding.parameters()] == ["embedding.positions"]
    assert not shard_of(next(tied.parameters())).tied  # no other stage holds it
    last = units("gpt2", 3, 2)
    assert last[1].readers == ((last[2],),)
    assert shard_of(next(last[1].parameters())).tied


def test_a_layer_reads_its_own_parameters() -> None:
    layer = units("llama")[1]
    assert layer.readers == ((layer,),)
    assert [shard_of(p).name for p in layer.parameters()] == [
        "layers.0.attention_norm.weight", "layers.0.attention.qkv.weight",
        "layers.0.attention.output.weight", "layers.0.mlp_norm.weight",
        "layers.0.mlp.gate_up.weight", "layers.0.mlp.down.weight",
    ]  # fmt: skip


def test_evaluation_without_gradients_needs_no_recompute() -> None:
    layout = Layout.of(MODELS["gpt2"], TRAINING)
    stage = build_stage(MODELS["gpt2"], layout, TRAINING, 0, tensor_parallel_groups(1))
    tokens = torch.zeros(1, 5, dtype=torch.int64)  # shorter than in training
    with torch.no_grad():
        logits = stage(tokens)
    assert logits.shape == (1, 5, 37)
    assert not logits.requires_grad
