"""Every rule that a model's blocks set says its numbers and what would obey it."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.specs import (
    EmbeddingBlock,
    HeadBlock,
    LatentAttentionBlock,
    LayerBlock,
    Layout,
    MlpBlock,
    ModelSpec,
    MoeBlock,
    NormBlock,
    PatchEmbeddingBlock,
    Precision,
    Recompute,
    ResidualBranch,
    StateSpaceBlock,
    Tower,
)
from shardwright.specs.rules import num_experts_of, precision_violations, recompute_modules_of
from tests.specs.small import cluster, model, training

NORM = NormBlock(type="rms_norm", hidden_size=16, bias=False, epsilon=1e-5)


def tower(*bodies: Any, name: str = "decoder", image: bool = False) -> Tower:
    branches = tuple(ResidualBranch(body=body, pre_norm=NORM) for body in bodies)
    first: Any = EmbeddingBlock(vocab_size=96, hidden_size=16)
    if image:
        first = PatchEmbeddingBlock(hidden_size=16, patch_size=2, num_patches=9)
    blocks = (first, LayerBlock(branches=branches, repeat=4), NORM)
    head = () if image else (HeadBlock(vocab_size=96, hidden_size=16, tied=False),)
    return Tower(name=name, blocks=(*blocks, *head), tokens_per_sample=10 if image else None)


def made_of(*towers: Tower) -> ModelSpec:
    return ModelSpec(name="m", family="custom", towers=towers, max_seq_len=None, source="a test")


MLA = LatentAttentionBlock(
    hidden_size=16, num_heads=4, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=4,
    qk_rope_head_dim=2, v_head_dim=4, rotary=None,
)  # fmt: skip
MOE = MoeBlock(
    hidden_size=16, expert_size=8, num_experts=6, top_k=2, activation="silu", gated=True,
    shared_size=8,
)  # fmt: skip
SSM = StateSpaceBlock(
    version="mamba2", hidden_size=16, inner_size=32, state_size=4, conv_kernel=4, num_heads=4
)
EXPERTS = made_of(tower(MLA, MOE))
STATES = made_of(tower(SSM))
DENSE = model()


def broken(spec: ModelSpec, **choices: Any) -> list[tuple[str, str, str | None]]:
    layout = Layout.of(spec, training(), **choices)
    found = layout.violations(spec, cluster(), training())
    return [(one.rule, one.problem, one.nearest) for one in found]


@pytest.mark.parametrize(
    ("spec", "choices", "rule", "said", "nearest"),
    [
        (DENSE, {"tp": 8}, "attention_heads", "4 attention heads", "tp <= 4"),
        (EXPERTS, {"tp": 8}, "attention_heads", "4 attention heads", "tp <= 4"),
        (STATES, {"tp": 8}, "state_space_heads", "4 state-space heads", "tp <= 4"),
        (DENSE, {"dp": 8, "sequence_parallel": True}, "sequence_parallel", "tp > 1",
         "sequence_parallel = false"),
        (DENSE, {"dp": 8, "ep": 2}, "experts", "no experts", "ep = 1"),
        (DENSE, {"dp": 8, "etp": 2}, "experts", "no experts", "etp = 1"),
        (EXPERTS, {"dp": 8, "ep": 4}, "experts", "the 6 experts", "ep in [3, 6]"),
        (DENSE, {"dp": 1, "cp": 8, "cp_kind": "all_to_all"}, "context_parallel",
         "4 attention heads", "cp <= 4, or cp_kind = ring"),
        (DENSE, {"dp": 8, "recompute": Recompute(policy="selective", modules=("moe",))},
         "recompute", "no moe", "one of attn_proj, core_attn, mlp, mlp_act, norm"),
        (STATES, {"dp": 8, "recompute": Recompute(policy="selective")},
         "recompute", "no core_attn", "one of norm"),
        (DENSE, {"dp": 8, "recompute": Recompute(policy="full", modules=("norm",))},
         "recompute", "with policy full", "policy selective"),
        (DENSE, {"dp": 8, "recompute": Recompute(num_layers=2)},
         "recompute", "2 layers with policy none", "policy full"),
        (DENSE, {"pp": 2, "dp": 4, "recompute": Recompute(policy="full", num_layers=3)},
         "recompute", "stage 0 recomputes 3 layers, but holds 2", "full:2"),
        (DENSE, {"dp": 8, "loss_chunks": 33}, "loss_chunks", "32 tokens", "loss_chunks <= 32"),
        (DENSE, {"dp": 8, "zero": 1, "zero_shard_degree": 3}, "zero_shard_degree",
         "dp x cp = 8", "one of [2, 4]"),
        (EXPERTS, {"dp": 8, "ep": 2, "zero": 1, "expert_zero_shard_degree": 3},
         "expert_zero_shard_degree", "edp = 4", "one of [2, 4]"),
        (DENSE, {"dp": 8, "expert_zero_shard_degree": 2}, "expert_zero_shard_degree",
         "zero = 0", "expert_zero_shard_degree = 1"),
        (DENSE, {"dp": 8, "offload": ("optimizer", "optimizer")}, "offload", "twice",
         "offload optimizer once"),
    ],
)  # fmt: skip
def test_each_rule_has_its_numbers_and_what_obeys_it(
    spec: ModelSpec, choices: dict[str, Any], rule: str, said: str, nearest: str
) -> None:
    found = [one for one in broken(spec, **choices) if one[0] == rule]
    assert any(said in problem and near == nearest for _, problem, near in found), found


def test_rings_need_two_pieces_a_rank_and_other_kinds_one() -> None:
    long = training().model_copy(update={"seq_len": 24, "global_batch": 8})
    for kind, expected in (("ring", ["context_parallel"]), ("all_gather", [])):
        layout = Layout.of(DENSE, long, cp=8, cp_kind=kind)
        assert [one.rule for one in layout.violations(DENSE, cluster(), long)] == expected


def test_context_parallelism_leaves_image_towers_whole() -> None:
    attention = DENSE.decoder.blocks[1]
    assert isinstance(attention, LayerBlock)
    bodies = [branch.body for branch in attention.branches]
    both = made_of(tower(*bodies, name="vision", image=True), tower(*bodies))
    assert broken(both, cp=8) == []


def test_heads_columns_and_layers_may_be_uneven() -> None:
    assert broken(DENSE, tp=3, dp=1, pp=1)[0][0] == "world_size"
    assert {rule for rule, *_ in broken(DENSE, tp=3, dp=1)} == {"world_size"}
    assert broken(DENSE, pp=4, boundaries=(2, 2, 3), dp=2) == []


def test_a_bare_mlp_needs_a_column_a_rank_and_every_row_a_vocabulary() -> None:
    narrow = made_of(tower(MlpBlock(
        hidden_size=16, ffn_size=4, activation="silu", gated=True, bias=False
    )))  # fmt: skip
    assert ("ffn_size", "tp = 8 exceeds ffn_size = 4", "tp <= 4") in broken(narrow, tp=8)
    assert [rule for rule, *_ in broken(narrow, tp=100)].count("vocab_size") == 1


def test_a_loss_without_a_vocabulary_has_no_chunks() -> None:
    images = made_of(tower(MLA, image=True))
    assert ("loss_chunks" in [rule for rule, *_ in broken(images, dp=8, loss_chunks=2)]) is True


def test_what_a_model_has() -> None:
    assert num_experts_of(EXPERTS) == (6,)
    assert num_experts_of(DENSE) == ()
    assert recompute_modules_of(EXPERTS) == {
        "norm", "core_attn", "attn_proj", "mla_up_proj", "moe", "moe_act", "shared_experts",
    }  # fmt: skip


def test_a_precision_needs_units_of_its_dtype_on_every_accelerator() -> None:
    def refused(precision: str, *dtypes: str, vendor: str = "NVIDIA") -> bool:
        own = cluster()
        device = own.accelerator.model_copy(
            update={"peak_flops_per_s": dict.fromkeys(dtypes, 1e12), "vendor": vendor}
        )
        group = own.groups[0].model_copy(update={"accelerator": device})
        job = training().model_copy(update={"precision": Precision(precision)})
        found = precision_violations(own.model_copy(update={"groups": (group,)}), job)
        assert all(one.rule == "precision" and device.name in one.problem for one in found)
        return bool(found)

    assert refused("bf16", "fp32", "fp16"), "a V100"
    assert not refused("fp16", "fp32", "fp16")
    assert not refused("fp16", "bf16"), "units for bf16 take fp16"
    assert refused("fp8-tensor", "bf16", "fp16"), "an A100"
    assert not refused("fp8-tensor", "bf16", "fp8")
    assert refused("nvfp4", "bf16", "fp8")
    assert not refused("fp32", "fp16")
    assert not refused("bf16", "fp32", vendor="cpu"), "a processor computes in any"
