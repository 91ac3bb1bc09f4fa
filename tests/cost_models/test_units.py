"""Prices of units: shared by equal layers, one per tensor-parallel rank that may be slowest."""

from __future__ import annotations

from typing import Any

from shardwright.cost_models.step import StepModel
from shardwright.cost_models.units import PassSeconds
from shardwright.specs import Layout, ModelSpec, TrainingSpec
from shardwright.specs.sources import model_from_config
from tests.cost_models.profiles import cluster, profile

TRAINING = TrainingSpec(global_batch=16, seq_len=128)


def llama(heads: int = 8, kv_heads: int = 4, **more: Any) -> ModelSpec:
    config = {
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 16 * heads,
        "intermediate_size": 384, "num_hidden_layers": 6, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "max_position_embeddings": 128,
    }  # fmt: skip
    return model_from_config(config | more, name="small", source="a test").spec


def test_pass_seconds_add_and_scale() -> None:
    one = PassSeconds(1.0, 2.0, 3.0, 4.0)
    assert (one + one) == one.scaled(2.0) == PassSeconds(2.0, 4.0, 6.0, 8.0)
    assert one.total_s == 10.0


def test_equal_layers_are_priced_once() -> None:
    model = llama()
    price = StepModel(model, TRAINING, profile())
    stages = price.stage_costs(Layout.of(model, TRAINING, tp=2, pp=2, dp=2))
    layers = [*stages[0].units[1:], *stages[1].units[:-1]]
    assert len(layers) == 6
    assert all(layer is layers[0] for layer in layers)


def test_prices_do_not_leak_between_layouts() -> None:
    """Whatever was priced before, a layout's prices are those of a fresh model."""
    model = llama()
    all_choices: list[dict[str, Any]] = [
        {"dp": 8}, {"dp": 8, "zero": 1}, {"dp": 8, "zero": 3},
        {"dp": 8, "zero": 3, "zero_shard_degree": 2}, {"tp": 2, "dp": 4},
        {"tp": 2, "dp": 4, "sequence_parallel": True}, {"dp": 8, "micro_batch": 2},
        {"tp": 2, "pp": 4},
    ]  # fmt: skip
    layouts = [Layout.of(model, TRAINING, **choices) for choices in all_choices]
    used = StepModel(model, TRAINING, profile())
    for chosen in layouts + layouts[::-1]:
        fresh = StepModel(model, TRAINING, profile())
        assert used.stage_costs(chosen) == fresh.stage_costs(chosen)
        assert used.memory(chosen) == fresh.memory(chosen)


def test_a_stage_across_nodes_pays_for_its_slow_links() -> None:
    """Three ranks a stage on nodes of four: the second stage's ranks 3, 4, 5 straddle."""
    model = llama()
    price = StepModel(model, TRAINING, profile(cluster(num_nodes=3, ranks_per_node=4)))
    stages = price.stage_costs(Layout.of(model, TRAINING, tp=3, pp=4, boundaries=(2, 3, 5)))
    assert stages[1].units[0].forward[0].tp_comm_s > 1.5 * stages[0].units[1].forward[0].tp_comm_s
    assert stages[1].units[0].forward[0].compute_s == stages[0].units[1].forward[0].compute_s
