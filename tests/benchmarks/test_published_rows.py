"""Published rows become the jobs that they describe, or say why not."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from benchmarks.published_rows import Job, Row, job_of, node_bandwidth_bytes_per_s

ROW: dict[str, Any] = {
    "id": "a-row",
    "kind": "training_run",
    "quality": "high",
    "status": "ok",
    "stack": "a-stack",
    "notes": "a field that nothing reads",
    "model": {
        "layers": 6, "hidden": 1024, "heads": 16, "kv_heads": 16, "ffn_hidden": 4096,
        "vocab": 50000, "seq_len": 1024, "gated_mlp": False,
    },
    "hardware": {"accelerator": "A100-SXM4-80GB", "gpus": 16, "gpus_per_node": 8},
    "parallel": {
        "tp": 2, "pp": 2, "dp": 4, "vpp": 1, "zero": 1, "zero_shard_degree": "all",
        "recompute": "full", "micro_batch": 2, "global_batch": 64, "precision": "bf16",
    },
    "measured": {"iteration_time_s": 2.5},
}  # fmt: skip


def row(**changes: Any) -> Row:
    """`ROW` with ``part__field`` or whole fields replaced."""
    value = deepcopy(ROW)
    for name, change in changes.items():
        part, _, field = name.partition("__")
        if field:
            value[part][field] = change
        else:
            value[part] = change
    return Row.model_validate(value)


def job(**changes: Any) -> Job:
    found = job_of(row(**changes))
    assert isinstance(found, Job), found
    return found


def test_a_row_becomes_its_job() -> None:
    found = job()
    (layout,) = found.layouts
    assert (layout.tp, layout.pp, layout.dp, layout.micro_batches) == (2, 2, 4, 8)
    assert (layout.zero, layout.zero_shard_degree) == (1, 4)
    assert {entry.policy for entry in layout.recompute} == {"full"}
    assert (found.source, found.measured_s) == ("a-stack", 2.5)
    group = found.step_model.cluster.groups[0]
    assert (group.accelerator.name, group.num_nodes) == ("a100-sxm4-80gb", 2)
    per_layer = 12 * 1024**2 + 13 * 1024
    assert found.step_model.model.num_parameters == 6 * per_layer + (51024 + 2) * 1024
    assert found.predicted_s() == found.step_model.predict(layout).step_time_s


def test_gated_rows_are_llamas_and_known_configs_are_presets() -> None:
    gated = job(model__gated_mlp=True, model__kv_heads=4).step_model.model
    assert gated.family == "llama"
    assert gated.num_parameters == 2 * 50000 * 1024 + 1024 + 6 * (
        2 * 1024**2 + 2 * 1024 * 256 + 3 * 1024 * 4096 + 2 * 1024
    )
    preset = job(model={"hf_config": "llama-2-7b", "seq_len": 4096}).step_model.model
    assert preset.num_parameters == 6_738_415_616


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "kernel"}, "no training run"),
        ({"status": "oom"}, "out of memory"),
        ({"quality": "low"}, "contradicts itself (quality low)"),
        ({"stack": None}, "software not stated"),
        ({"measured": {"tflops_per_gpu": 100}}, "no step time"),
        ({"model__experts": 8}, "mixture of experts"),
        ({"parallel__ep": 8}, "mixture of experts"),
        ({"parallel__cp": 2}, "context parallel"),
        ({"parallel__precision": None}, "precision not stated"),
        ({"parallel__precision": "fp8"}, "precision other than bf16 and fp16"),
        ({"parallel__recompute": "selective"}, "selective recompute"),
        ({"parallel__vpp": 2}, "interleaved or zero-bubble schedule"),
        ({"parallel__schedule": "zb-h1"}, "interleaved or zero-bubble schedule"),
        ({"parallel__vpp": None}, "interleaving not stated"),
        ({"hardware__accelerator": None}, "accelerator not in the catalogue"),
        ({"parallel__micro_batch": None}, "layout not stated in full"),
        ({"parallel__zero": None}, "ZeRO not stated"),
        ({"parallel__zero_shard_degree": None}, "ZeRO shard degree not stated"),
        ({"model__vocab": None}, "model shape not stated in full"),
        ({"hardware__gpus_per_node": None}, "devices per node not stated"),
        ({"parallel__global_batch": 65}, "breaks the rule batch"),
        ({"hardware__gpus": 32}, "breaks the rule world_size"),
        ({"hardware__accelerator": "A999"}, "accelerator or network not known"),
        ({"model__heads": 7}, "model shape not valid"),
    ],
)
def test_what_cannot_be_priced_says_why(change: dict[str, Any], reason: str) -> None:
    assert job_of(row(**change)) == reason


def test_step_times_are_never_taken_from_flop_rates() -> None:
    assert row(measured={"tflops_per_gpu": 1}).step_time_s is None
    assert row(measured={}, derived={"iteration_time_s": 3.0}).step_time_s == 3.0
    by_rate = row(measured={"tokens_per_s_per_gpu": 1024.0})
    assert by_rate.step_time_s == 64 * 1024 / (1024 * 16)


def test_one_replica_has_nothing_to_shard() -> None:
    alone = job(parallel__dp=1, parallel__pp=8, parallel__zero=None, model__layers=8)
    assert alone.layouts[0].zero == 0


def test_hsdp_shards_within_a_node() -> None:
    changes = {"tp": 1, "pp": 1, "dp": 16, "zero": 3, "zero_shard_degree": None}
    hybrid = ROW["parallel"] | changes | {"as_printed": {"zero": "HSDP"}}
    assert job(parallel=hybrid).layouts[0].zero_shard_degree == 8


def test_recompute_that_is_not_stated_is_the_fastest_that_fits() -> None:
    roomy = job(parallel__recompute=None)
    none, full = (roomy.step_model.predict(layout).step_time_s for layout in roomy.layouts)
    assert roomy.predicted_s() == none < full
    # 256 sequences of saved activations do not fit 80 GB, inputs of the layers alone do.
    large = job(
        parallel__recompute=None, parallel__micro_batch=256, parallel__global_batch=1024,
        parallel__tp=1, parallel__pp=1, parallel__dp=4, hardware__gpus=4, model__vocab=1000,
        model__layers=24,
    )  # fmt: skip
    verdicts = [large.step_model.predict(layout).memory_verdict for layout in large.layouts]
    assert verdicts == ["does_not_fit", "fits"]
    assert large.predicted_s() == large.step_model.predict(large.layouts[1]).step_time_s


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("8x HDR 200Gb/s InfiniBand per node (Selene)", 200e9),
        ("4x Omni-Path 100Gb/s per node (from memory)", 50e9),
        ("1600 Gb/s RoCE per node", 200e9),
        ("400Gbps per node", 50e9),
        ("400Gb/s RDMA per GPU", 400e9),
        ("InfiniBand 8x50GB/s per node", 400e9),
        ("RoCE RDMA", None),
        ("Omni-Path 100Gb/s links", None),
    ],
)
def test_networks_are_read_as_bytes_per_node(text: str, bytes_per_s: float | None) -> None:
    assert node_bandwidth_bytes_per_s(text, per_node=8) == bytes_per_s


def test_the_stated_network_joins_the_nodes_and_a_remembered_one_only_without_it() -> None:
    hints = {"hardware.inter_node": "400Gbps per node"}

    def bandwidth(**changes: Any) -> float:
        tier = job(**changes).step_model.cluster.groups[0].inter_node
        assert tier is not None
        return tier.bandwidth_bytes_per_s

    assert bandwidth() == 25e9  # the vendor's own node
    assert bandwidth(memory_hints=hints) == 50e9 / 8
    stated = "1600 Gb/s RoCE per node"
    assert bandwidth(memory_hints=hints, hardware__inter_node=stated) == 25e9
    rack = job(hardware__accelerator="GB200", hardware__intra_node="NVLink5 NVL72 domain")
    assert rack.step_model.cluster.groups[0].scale_up_domain_gpus == 72
