"""Degrees, sharding, stages and recomputation, and what torchtitan does not have of them."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.specs import Recompute
from tests.planner.exporters.torchtitan.titans import config, exported, refusal

FULL = Recompute(policy="full")
ZERO3: dict[str, Any] = {"zero": 3}


def parallelism(**given: Any) -> dict[str, Any]:
    return dict(config(**given)["parallelism"])


def test_degrees() -> None:
    found = parallelism(tp=2, cp=2, dp=4, cp_kind="all_gather", sequence_parallel=True, **ZERO3)
    assert found["tensor_parallel_degree"] == 2
    assert found["context_parallel_degree"] == 2
    assert found["context_parallel_rotate_method"] == "allgather"
    assert found["data_parallel_shard_degree"] == 4
    assert found["data_parallel_replicate_degree"] == 1
    assert found["fsdp_reshard_after_forward"] == "always"


def test_copies_of_shards() -> None:
    found = parallelism(cp=2, dp=8, zero_shard_degree=4, reshard_after_forward=False, **ZERO3)
    assert found["data_parallel_shard_degree"] == 2
    assert found["data_parallel_replicate_degree"] == 4
    assert found["fsdp_reshard_after_forward"] == "never"
    alone = parallelism(dp=8)
    assert (alone["data_parallel_shard_degree"], alone["data_parallel_replicate_degree"]) == (1, 8)


def test_experts() -> None:
    found = config("qwen3_moe", dp=8, ep=4, **ZERO3)["parallelism"]
    assert found["expert_parallel_degree"] == 4
    assert "over tp = 2 ranks" in refusal(
        "qwen3_moe", tp=2, dp=8, sequence_parallel=True, **ZERO3
    ), "without ep, tp splits experts"
    assert "zero_shard_degree x tp" in refusal(
        "qwen3_moe", dp=8, ep=4, expert_zero_shard_degree=1, **ZERO3
    )


def test_stages_are_named_modules() -> None:
    found = config(pp=2, dp=2, boundaries=(5,), **ZERO3)
    parts = found["parallelism"]["module_fqns_per_model_part"]
    assert parts[0] == ["tok_embeddings", *(f"layers.{n}" for n in range(5))]
    assert parts[1] == [*(f"layers.{n}" for n in range(5, 12)), "norm", "output"]
    assert found["parallelism"]["pipeline_parallel_schedule"] == "1F1B"
    assert found["training"]["local_batch_size"] == 32, "all micro-batches of a replica"
    assert found["parallelism"]["pipeline_parallel_microbatch_size"] == 1


@pytest.mark.parametrize(
    ("schedule", "name"),
    [
        ("interleaved-1f1b", "Interleaved1F1B"),
        ("zb-v", "ZBVZeroBubble"),
        ("dualpipev", "DualPipeV"),
    ],
)
def test_schedules(schedule: str, name: str) -> None:
    found = parallelism(pp=2, vpp=2, dp=2, schedule=schedule, **ZERO3)
    assert found["pipeline_parallel_schedule"] == name
    assert len(found["module_fqns_per_model_part"]) == 4


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"zero": 1, "dp": 8}, "not by ZeRO 1"),
        ({"zero": 2, "dp": 8}, "not by ZeRO 2"),
        ({"zero": 3}, "shards nothing"),
        ({"zero": 3, "cp": 2, "dp": 3, "zero_shard_degree": 3}, "not a multiple of cp"),
        ({"cp": 2}, "DDP"),
        ({"tp": 2, "sequence_parallel": True}, "fp32 weights only"),
        ({"zero": 3, "tp": 2, "dp": 2}, "always splits the sequence"),
        ({"zero": 3, "cp": 2, "cp_kind": "all_to_all"}, "all_to_all"),
        ({"zero": 3, "tp": 8, "dp": 2, "sequence_parallel": True}, "4 key-value heads"),
        ({"zero": 3, "dp": 2, "pp": 2, "rank_order": "tp-cp-pp-dp"}, "meshes"),
        ({"zero": 3, "dp": 2, "pp": 2, "schedule": "zb-h1"}, "no schedule zb-h1"),
        ({"zero": 3, "dp": 32, "pp": 4, "micro_batch": 2}, "one for each stage"),
        ({"zero": 3, "dp": 2, "pp": 4, "boundaries": (4, 4, 8)}, "holds nothing"),
        ({"zero": 3, "dp": 2, "recompute": Recompute(policy="selective")}, "whole layers"),
        ({"zero": 3, "dp": 2, "pp": 2, "recompute": (FULL, Recompute())}, "alike on every stage"),
        ({"zero": 3, "dp": 2, "recompute": Recompute(policy="full", num_layers=5)}, "5 of 12"),
        ({"zero": 3, "dp": 2, "offload": ("optimizer",)}, "together"),
        ({"zero": 3, "dp": 2, "loss_chunks": 4}, "4 pieces"),
        ({"zero": 3, "dp": 3}, "is not global_batch"),
    ],
)  # fmt: skip
def test_what_it_does_not_have(given: dict[str, Any], word: str) -> None:
    assert word in refusal(**given)


def test_qwen3_has_no_pipeline() -> None:
    assert "no pipeline parallelism" in refusal("qwen3", pp=2, dp=2, zero=3)


def test_recomputation() -> None:
    every = config(dp=2, recompute=Recompute(policy="full", num_layers=4), zero=3)
    assert every["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "3"}
    found = exported(dp=2, recompute=Recompute(policy="full", num_layers=4), zero=3)
    assert any(note.startswith("recompute: every 3.") for note in found.notes)
    assert config(dp=2, recompute=FULL, zero=3)["activation_checkpoint"] == {"mode": "full"}
    assert config(dp=2, zero=3)["activation_checkpoint"] == {"mode": "none"}
