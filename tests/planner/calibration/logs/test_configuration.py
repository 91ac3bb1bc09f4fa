"""What logs print of the job."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.planner.calibration.logs.configuration import configuration_of, read_configuration
from shardwright.planner.calibration.logs.reading import Notes
from tests.planner.calibration.logs.samples import fixture


def stated(*lines: str) -> dict[str, Any]:
    notes = Notes()
    for line in lines:
        read_configuration(line, notes)
    return configuration_of(notes.stated)


def test_megatron_s_table_of_arguments() -> None:
    found = dict(fixture("megatron_core_arguments.log").stated)
    arguments = found.pop("arguments")
    assert arguments["kv_channels"] == "128"
    assert found == {
        "tp": 4, "pp": 2, "cp": 1, "ep": 1, "dp": 2, "gpus": 16, "zero": 1, "micro_batch": 1,
        "sequence_parallel": True, "recompute": "none", "global_batch": 64, "seq_len": 8192,
        "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128,
        "ffn_hidden": 14336, "vocab": 128256, "gated_mlp": True, "bias": False, "tied": False,
        "rotary": True, "precision": "bf16", "optimizer": "adam", "num_microbatches": 32,
    }  # fmt: skip


def test_torchtitan_s_lines() -> None:
    assert fixture("torchtitan_2025.log").stated == {
        "tp": 4, "dp": 8, "gpus": 32, "zero": 3, "device_name": "NVIDIA H100 80GB HBM3",
        "recompute": "selective", "seq_len": 8192, "global_batch": 16, "micro_batch": 2,
    }  # fmt: skip


def test_a_mesh_of_replicas_and_shards() -> None:
    line = "Building 3-D device mesh with ['pp', 'dp_replicate', 'dp_shard'], [2, 2, 4]"
    assert stated(line) == {"pp": 2, "dp": 8, "zero": 3, "zero_shard_degree": 4, "gpus": 16}


def test_deepspeed_s_dump() -> None:
    found = fixture("deepspeed_pipeline.log").stated
    assert found["global_batch"] == 256
    assert found["micro_batch"] == 4
    assert found["num_microbatches"] == 8
    assert (found["zero"], found["gpus"], found["precision"]) == (1, 8, "bf16")


def test_neox_says_where_a_value_is_from() -> None:
    found = fixture("gpt_neox.log").stated
    assert (found["tp"], found["hidden"], found["seq_len"]) == (2, 4096, 2048)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({"checkpoint_activations": "True"}, {"recompute": "full"}),
        ({"activations_checkpoint_method": "uniform"}, {"recompute": "full"}),
        ({"recompute_granularity": "selective"}, {"recompute": "selective"}),
        ({"recompute_granularity": "None"}, {"recompute": "none"}),
        ({"fp8": "hybrid", "bf16": "True"}, {"precision": "fp8-delayed"}),
        ({"fp8": "e4m3", "fp8_recipe": "blockwise"}, {"precision": "fp8-block"}),
        ({"fp16": "False", "bf16": "False"}, {"precision": "fp32"}),
        ({"zero_stage": "2", "deepspeed": "True"}, {"zero": 2}),
        ({"zero_stage": "2", "deepspeed": "False"}, {}),
        (
            {"use_megatron_fsdp": "True", "data_parallel_sharding_strategy": "optim_grads_params"},
            {"zero": 3},
        ),
        ({"group_query_attention": "False", "num_query_groups": "1"}, {}),
        ({"virtual_pipeline_model_parallel_size": "None"}, {}),
        ({"model_parallel_size": "4"}, {"tp": 4}),
    ],
)
def test_arguments_of_several_years(rows: dict[str, str], expected: dict[str, Any]) -> None:
    found = stated(*(f"  {name} {'.' * 20} {value}" for name, value in rows.items()))
    found.pop("arguments")
    assert found == expected


def test_words_of_older_and_newer_releases() -> None:
    old = "using world size: 16, data-parallel-size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 4 "  # noqa: E501
    assert stated(old) == {"gpus": 16, "dp": 1, "tp": 4, "pp": 4}
    assert stated("using world size: 8 and model-parallel size: 2 ") == {"gpus": 8, "tp": 2}


def test_a_line_that_says_nothing() -> None:
    assert not read_configuration("loading data ... done", Notes())
