from __future__ import annotations

import re
from typing import Any

import pytest

from shardwright.planner.validation.rows import Row, RowModel, read_runs
from shardwright.planner.validation.shapes import (
    Assumptions,
    Configs,
    model_of,
    with_capacity,
    without_prediction,
)
from shardwright.specs import AttentionBlock, InputError, ModelSpec
from shardwright.specs.blocks import LayerBlock, PredictionBlock
from shardwright.specs.bodies import LatentAttentionBlock, MlpBlock, MoeBlock
from tests.planner.validation import rows
from tools.sources import ROOT

DATA = ROOT.parent / "shared" / "data"
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 512,
}  # fmt: skip


def built(configs: Configs | None = None, **changes: Any) -> tuple[ModelSpec, list[str]]:
    assumed = Assumptions()
    row: RowModel = rows.row(model=changes).model
    return model_of(row, configs=configs or {}, assumed=assumed), assumed.notes


def layers_of(model: ModelSpec) -> list[LayerBlock]:
    return [block for block in model.decoder.blocks if isinstance(block, LayerBlock)]


def body(model: ModelSpec, branch: int, layer: int = 0) -> Any:
    return layers_of(model)[layer].branches[branch].body


class TestSizes:
    def test_a_plain_mlp_makes_a_gpt(self) -> None:
        model, assumed = built()
        h, ffn, v, s = 1024, 4096, 51200, 1024
        layer = 4 * h * h + 4 * h + 2 * h * ffn + ffn + h + 4 * h
        assert model.num_parameters == v * h + s * h + 4 * layer + 2 * h
        assert assumed == []

    def test_a_gated_mlp_makes_a_llama(self) -> None:
        model, _ = built(gated_mlp=True, kv_heads=4)
        h, ffn, v = 1024, 4096, 51200
        layer = 2 * h * h + 2 * h * h // 4 + 3 * h * ffn + 2 * h
        assert model.num_parameters == 2 * v * h + 4 * layer + h
        assert model.max_seq_len is None

    def test_what_is_not_stated_is_assumed_and_said(self) -> None:
        model, assumed = built(ffn_hidden=None, vocab=None, heads=None, kv_heads=None)
        assert assumed == ["heads = 8", "vocab = 51200", "ffn_hidden = 4096"]
        assert body(model, 1) == MlpBlock(
            hidden_size=1024, ffn_size=4096, activation="gelu_tanh", gated=False, bias=True
        )

    def test_the_customary_gated_width_is_llamas(self) -> None:
        model, assumed = built(gated_mlp=True, hidden=4096, ffn_hidden=None)
        assert body(model, 1).ffn_size == 11008
        assert assumed == ["ffn_hidden = 11008"]

    def test_remarks_change_the_blocks(self) -> None:
        model, _ = built(other="Untied embeddings, parallel attention+MLP, no bias; head_dim 96")
        attention = body(model, 0)
        assert isinstance(attention, AttentionBlock)
        assert (attention.head_dim, attention.qkv_bias) == (96, False)
        assert attention.rotary is not None
        assert layers_of(model)[0].parallel
        assert not model.head.tied
        assert model.edges == ()

    def test_an_exact_count_decides_on_biases(self) -> None:
        with_biases, _ = built()
        model, _ = built(other=f"no bias; exact params {with_biases.num_parameters}")
        assert model == with_biases
        other, _ = built(other="no bias; exact params 12")
        assert not body(other, 0).qkv_bias

    def test_experts(self) -> None:
        model, assumed = built(experts=8, topk=2, gated_mlp=True, other="moe_ffn 256, 2 shared")
        moe = body(model, 1)
        assert isinstance(moe, MoeBlock)
        assert (moe.num_experts, moe.top_k, moe.expert_size, moe.shared_size) == (8, 2, 256, 512)
        assert assumed == []

    def test_ffn_hidden_is_the_experts_where_nothing_else_is_said(self) -> None:
        model, assumed = built(experts=4, topk=None, ffn_hidden=512)
        assert body(model, 1).expert_size == 512
        assert assumed == ["topk = 2"]

    def test_latent_attention_and_first_dense_layers(self) -> None:
        model, _ = built(
            experts=8, topk=2, gated_mlp=True, layers=4, heads=16, hidden=2048,
            other="MLA q_lora 100 kv_lora 50 rope 32; moe_ffn 64; 3 dense layers",
        )  # fmt: skip
        latent = body(model, 0)
        assert isinstance(latent, LatentAttentionBlock)
        assert (latent.q_lora_rank, latent.kv_lora_rank, latent.qk_rope_head_dim) == (100, 50, 32)
        assert [layer.repeat for layer in layers_of(model)] == [3, 1]
        assert isinstance(body(model, 1, layer=0), MlpBlock)
        assert isinstance(body(model, 1, layer=1), MoeBlock)

    @pytest.mark.parametrize(
        "sizes", [{"heads": 7, "kv_heads": 3}, {"experts": 2, "topk": 9}, {"layers": None}]
    )
    def test_sizes_that_make_no_model_are_refused(self, sizes: dict[str, Any]) -> None:
        with pytest.raises(InputError):
            built(**sizes)


class TestNamed:
    def test_a_given_config_wins_over_sizes(self) -> None:
        model, _ = built({"mine": LLAMA}, hf_config="mine", layers=None)
        assert (model.name, model.decoder.num_layers) == ("mine", 3)

    def test_with_fewer_layers_than_its_config(self) -> None:
        model, _ = built({"mine": LLAMA}, hf_config="mine", layers=2)
        assert model.decoder.num_layers == 2

    def test_a_preset(self) -> None:
        model, _ = built(hf_config="gpt2", layers=None)
        assert model.num_parameters == 124_439_808

    def test_an_unknown_name_falls_back_to_sizes(self) -> None:
        model, _ = built(hf_config="no-such-model")
        assert model.decoder.num_layers == 4

    @pytest.mark.parametrize("name", [None, "no-such-model"])
    def test_without_sizes_nothing_can_be_built(self, name: str | None) -> None:
        with pytest.raises(InputError, match=name or "not stated"):
            built(hf_config=name, hidden=None)

    def test_without_sizes_the_models_name_may_be_a_presets(self) -> None:
        model, _ = built(name="Llama 2 7B", hidden=None, layers=None)
        assert model.num_parameters == 6_738_415_616
        sized, _ = built(name="Llama 2 7B")
        assert sized.num_parameters < 2e8

    def test_longer_sequences_than_it_was_made_for(self) -> None:
        model, _ = built({"mine": LLAMA}, hf_config="mine", layers=3, seq_len=4096)
        assert model.max_seq_len == 4096
        learned, _ = built(hf_config="gpt2", layers=None, seq_len=2048)
        assert learned.embedding.max_positions == 2048


def test_without_prediction_leaves_the_other_blocks() -> None:
    model, _ = built()
    layer = layers_of(model)[0]
    mtp = PredictionBlock(
        layer=layer.model_copy(update={"repeat": 1}), hidden_size=1024, norm=model.final_norm
    )
    tower = model.decoder.model_copy(update={"blocks": (*model.decoder.blocks, mtp)})
    longer = model.model_copy(update={"towers": (tower,)})
    assert longer.num_prediction_parameters > 0
    assert without_prediction(longer) == model


def test_with_capacity_changes_the_experts_alone() -> None:
    model, _ = built(experts=8, topk=2)
    dropping = with_capacity(model, 1.25)
    assert body(dropping, 1) == body(model, 1).model_copy(update={"capacity_factor": 1.25})
    assert body(dropping, 0) == body(model, 0)


def test_published_parameter_counts_come_out_exactly() -> None:
    path = DATA / "published_runs.json"
    if not path.exists():
        pytest.skip("there is no published_runs.json here")
    checked = 0
    for row in (item for item in read_runs(path).rows if isinstance(item, Row)):
        stated = re.search(r"exact params (\d+)", row.model.other or "")
        if stated:
            model = model_of(row.model, configs={}, assumed=Assumptions())
            assert model.num_parameters == int(stated[1]), row.id
            checked += 1
    assert checked > 100
