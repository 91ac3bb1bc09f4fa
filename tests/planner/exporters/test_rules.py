"""Each rule of a target, against a layout that obeys all of them."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.planner.exporters.rules import TARGETS, broken_target_rules
from shardwright.specs import InputError, Layout, OptimizerSpec, TrainingSpec
from shardwright.specs.layout import Recompute
from shardwright.specs.sources import model_from_config

TRAINING = TrainingSpec(global_batch=64, seq_len=4096)


def llama(**changes: Any) -> Any:
    config = {
        "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 12,
        "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 4096,
        "vocab_size": 32000, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096, **changes,
    }  # fmt: skip
    return model_from_config(config, name="llama", source="test").spec


def mixtral(**changes: Any) -> Any:
    config = {
        "model_type": "mixtral", "hidden_size": 1024, "num_hidden_layers": 12,
        "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 4096,
        "vocab_size": 32000, "hidden_act": "silu", "rms_norm_eps": 1e-5, "num_local_experts": 8,
        "num_experts_per_tok": 2, "max_position_embeddings": 4096, **changes,
    }  # fmt: skip
    return model_from_config(config, name="mixtral", source="test").spec


def rules(
    model: Any, target: str = "megatron-lm", training: TrainingSpec = TRAINING, **choices: Any
) -> set[str]:
    layout = Layout.of(model, training, **choices)
    return {one.rule for one in broken_target_rules(target, layout, model, training)}


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_plain_layout_is_taken(target: str) -> None:
    taken: dict[str, Any] = {"tp": 4, "pp": 2, "dp": 2, "zero": 1, "sequence_parallel": True}
    assert rules(llama(), target, **taken) == set()
    assert rules(mixtral(), target, **taken, ep=4) == set()


def test_heads_must_be_a_multiple_of_tp() -> None:
    assert rules(llama(), tp=3) == {"heads", "kv_heads", "ffn"}
    assert rules(llama(num_attention_heads=12, hidden_size=768), tp=8, dp=1) == {"heads"}


def test_only_newer_versions_repeat_key_value_heads() -> None:
    assert rules(llama(), "megatron-lm", tp=8) == set()
    assert rules(llama(), "mt-megatronlm", tp=8) == {"kv_heads"}
    ten = llama(num_attention_heads=40, num_key_value_heads=10, hidden_size=5120)
    assert rules(ten, "megatron-lm", tp=4) == {"kv_heads"}


def test_context_parallel_splits_a_sequence_in_twice_its_degree() -> None:
    odd = TRAINING.model_copy(update={"seq_len": 4092})
    assert rules(llama(), cp=2, training=odd) == set()
    assert rules(llama(), cp=4, training=odd) == {"context_parallel"}
    assert rules(llama(), cp=8, cp_kind="all_to_all") == {"context_parallel"}


def test_sequence_parallel_needs_a_multiple_of_tp_and_experts_need_it() -> None:
    odd = TRAINING.model_copy(update={"seq_len": 4094})
    assert rules(llama(), tp=4, sequence_parallel=True, training=odd) == {"sequence_parallel"}
    assert rules(mixtral(), tp=4) == {"sequence_parallel"}


def test_experts_divide_over_ep_and_the_expert_grid_over_the_ranks() -> None:
    assert rules(mixtral(), dp=3, ep=3, training=TRAINING.model_copy(
        update={"global_batch": 63})) == {"experts"}  # fmt: skip
    assert rules(mixtral(), dp=4, ep=8) == {"expert_grid"}
    crossed: dict[str, Any] = {"dp": 4, "pp": 2, "ep": 2, "rank_order": "tp-cp-pp-dp"}
    assert rules(mixtral(), **crossed) == {"rank_order"}


def test_uneven_stages_need_a_layout_string() -> None:
    assert rules(llama(), "megatron-lm", pp=4, boundaries=(2, 7, 9)) == set()
    assert rules(llama(), "mt-megatronlm", pp=4, boundaries=(2, 7, 9)) == {"layers"}
    assert rules(llama(), "mt-megatronlm", pp=4, boundaries=(2, 6, 10)) == set(), "ends may differ"


def test_schedules_are_1f1b_and_interleaved_with_whole_rounds() -> None:
    assert rules(llama(), pp=2, schedule="zb-h1") == {"schedule"}
    interleaved: dict[str, Any] = {"pp": 4, "vpp": 3, "schedule": "interleaved-1f1b"}
    assert rules(llama(), **interleaved) == set()
    assert rules(llama(), **interleaved, micro_batch=32) == {"num_microbatches"}


def test_a_batch_must_divide_over_replicas() -> None:
    assert rules(llama(), dp=3) == {"global_batch"}


def test_activations_are_offloaded_without_pipeline_and_recomputation_only() -> None:
    assert rules(llama(), offload=("activations",)) == set()
    assert rules(llama(), offload=("activations",), pp=2) == {"offload"}
    full = Recompute(policy="full")
    assert rules(llama(), offload=("activations",), recompute=full) == {"offload"}
    assert rules(llama(), offload=("optimizer",)) == set()
    assert rules(llama(), offload=("parameters",)) == {"offload"}


def test_full_sharding_needs_megatron_fsdp_and_its_optimizers() -> None:
    assert rules(llama(), "megatron-lm", dp=8, zero=3) == set()
    assert rules(llama(), "mt-megatronlm", dp=8, zero=3) == {"zero"}
    muon = TRAINING.model_copy(update={"optimizer": OptimizerSpec(name="muon")})
    assert rules(llama(), "megatron-lm", muon, dp=8, zero=3) == {"zero"}


def test_an_unknown_target_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InputError, match="megatron-lm"):
        rules(llama(), "abacus")
