"""Flavors, models of other sizes, and what torchtitan does not have."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from shardwright.planner.exporters.exported import Findings, Job
from shardwright.planner.exporters.torchtitan.model import TitanModel, titan_model
from shardwright.specs.sources import resolve_model
from tests.planner.exporters.jobs import job_of, model_of


def found(name: str | None = None, **given: Any) -> tuple[TitanModel | None, list[str]]:
    findings = Findings()
    job: Job = job_of(model=resolve_model(name) if name else None, **given)
    return titan_model(job, findings), [one.problem for one in findings.refused]


@pytest.mark.parametrize(
    ("name", "family", "flavor"),
    [("llama-3.1-8b", "llama3", "8B"), ("llama-3.1-405b", "llama3", "405B"),
     ("qwen3-30b-a3b", "qwen3", "30B-A3B"), ("deepseek-v2-lite", "deepseek_v3", "16B")],
)  # fmt: skip
def test_flavors(name: str, family: str, flavor: str) -> None:
    model, refused = found(name)
    assert not refused
    assert model == TitanModel(family, family, flavor, None)


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-2-70b", "mistral-nemo-12b"])
def test_other_sizes_are_a_module_of_plain_numbers(name: str) -> None:
    model, refused = found(name)
    if name == "mistral-nemo-12b":
        assert model is None, "heads narrower than the hidden size"
        return
    assert not refused
    assert model is not None
    assert model.name == "planned"
    tree = ast.parse(model.module or "")
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    sizes = next(n for n in calls if getattr(n.func, "id", "") == "TransformerModelArgs")
    given = {
        k.arg: ast.literal_eval(k.value) for k in sizes.keywords if k.arg != "rope_scaling_args"
    }
    assert given["n_layers"] == resolve_model(name).decoder.num_layers
    assert max(map(len, (model.module or "").splitlines())) < 160


def test_flex_attention_of_a_flavor_is_left_where_context_is_split() -> None:
    model, _ = found("deepseek-v2-lite", cp=2)
    assert model is not None
    assert model.module is not None


def test_small_models_of_each_family() -> None:
    for kind, family in (("llama", "llama3"), ("qwen3", "qwen3"), ("qwen3_moe", "qwen3")):
        model, refused = found(kind=kind)
        assert model is not None, refused
        assert model.family == family


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("gpt2", "none of llama3"),
        ("qwen2-7b", "none of llama3"),
        ("mixtral-8x7b", "none of llama3"),
        ("gemma-2-9b", "none of llama3"),
        ("smollm2-135m", "tied embeddings"),
        ("deepseek-v3", "multi-token prediction"),
        ("bert-base-uncased", "decoders"),
        ("t5-small", "decoders"),
    ],
)
def test_what_it_does_not_have(name: str, word: str) -> None:
    training = job_of().training.model_copy(update={"seq_len": 512})
    model, refused = found(name, training=training)
    assert any(word in problem for problem in refused), refused
    assert model is None


def test_layers_must_be_alike() -> None:
    plain = model_of("qwen3")
    blocks = list(plain.decoder.blocks)
    layer = next(block for block in blocks if block.kind == "layer")
    attention, mlp = layer.branches
    wide = mlp.body.model_copy(update={"ffn_size": 2048})
    other = layer.model_copy(
        update={"branches": (attention, mlp.model_copy(update={"body": wide})), "repeat": 1}
    )
    index = blocks.index(layer)
    blocks[index : index + 1] = [layer.model_copy(update={"repeat": 11}), other]
    tower = plain.decoder.model_copy(update={"blocks": tuple(blocks)})
    mixed = plain.model_copy(update={"towers": (tower,)})
    findings = Findings()
    assert titan_model(job_of(model=mixed), findings) is None
    assert "differ in their MLP" in findings.refused[0].problem
