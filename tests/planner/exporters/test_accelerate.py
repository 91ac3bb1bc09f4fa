"""accelerate's YAML."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.export_jobs import exported_jobs
from shardwright.planner.exporters.accelerate import to_accelerate, yaml_text
from shardwright.planner.importers.plain_yaml import parse_yaml
from shardwright.specs import InputError, Recompute, TrainingSpec
from tests.planner.exporters.jobs import job_of


def config(kind: str = "llama", **given: Any) -> dict[str, Any]:
    found = to_accelerate(job_of(kind, **given))
    return dict(parse_yaml(found.files["accelerate.yaml"], source="test"))


def refusal(**given: Any) -> str:
    with pytest.raises(InputError) as caught:
        to_accelerate(job_of(**given))
    return str(caught.value)


def training(**changes: Any) -> TrainingSpec:
    return TrainingSpec(**{"global_batch": 64, "seq_len": 4096, **changes})


def test_plain_data_parallelism() -> None:
    found = config(dp=16)
    assert found["distributed_type"] == "MULTI_GPU"
    assert (found["num_machines"], found["num_processes"]) == (2, 16)
    assert found["mixed_precision"] == "bf16"
    assert config(dp=2, training=training(precision="fp32"))["mixed_precision"] == "no", "a word"


def test_fsdp() -> None:
    found = config(dp=16, zero=3, recompute=Recompute(policy="full"))["fsdp_config"]
    assert found["fsdp_version"] == 2
    assert found["fsdp_reshard_after_forward"] is True
    assert found["fsdp_activation_checkpointing"] is True
    kept = config(dp=16, zero=3, reshard_after_forward=False)["fsdp_config"]
    assert kept["fsdp_reshard_after_forward"] is False
    second = config(dp=16, zero=2)["fsdp_config"]
    assert second["fsdp_sharding_strategy"] == "SHARD_GRAD_OP"


def test_copies_of_shards() -> None:
    found = config(dp=16, zero=3, zero_shard_degree=8)["parallelism_config"]
    assert found["parallelism_config_dp_shard_size"] == 8
    assert found["parallelism_config_dp_replicate_size"] == 2


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"tp": 2}, "tensor parallelism (tp = 2)"),
        ({"pp": 2}, "pipeline parallelism (pp = 2)"),
        ({"cp": 2}, "context parallelism"),
        ({"dp": 8, "zero": 1}, "FSDP shards gradients"),
        ({"dp": 8, "zero": 2, "zero_shard_degree": 4}, "under ZeRO 3 only"),
        ({"dp": 8, "zero": 3, "offload": ("optimizer",)}, "together"),
        ({"dp": 8, "offload": ("optimizer",)}, "only what FSDP shards"),
        ({"dp": 8, "zero": 3, "recompute": Recompute(policy="selective")}, "every layer"),
        ({"dp": 8, "training": training(precision="mxfp8")}, "mxfp8"),
        ({"dp": 8, "zero": 3, "loss_chunks": 2}, "2 pieces"),
    ],
)  # fmt: skip
def test_what_it_does_not_have(given: dict[str, Any], word: str) -> None:
    assert word in refusal(**given)


def test_what_it_does_otherwise_is_said_in_the_file() -> None:
    found = to_accelerate(job_of(dp=8, zero=3))
    assert any(note.startswith("gradients") for note in found.notes)
    assert "#   gradients: FSDP" in found.files["accelerate.yaml"]


def test_the_script(tmp_path: Path) -> None:
    found = to_accelerate(job_of(dp=16, zero=3))
    (tmp_path / "train.sh").write_text(found.files["train.sh"])
    subprocess.run(["bash", "-n", str(tmp_path / "train.sh")], check=True)
    assert 'accelerate launch --config_file "$HERE/accelerate.yaml"' in found.files["train.sh"]


def test_words_that_yaml_reads_otherwise_are_quoted() -> None:
    text = yaml_text({"a": "no", "b": {"c": "NO", "d": True}}, heading="h", notes=["n"])
    assert parse_yaml(text, source="t") == {"a": "no", "b": {"c": "NO", "d": True}}


def test_its_own_loader_takes_the_files(tmp_path: Path) -> None:
    name = "accelerate.commands.config.config_args"
    loader = pytest.importorskip(name, reason="accelerate is not installed")
    for job, exported in exported_jobs("accelerate", 10, seed=4):
        path = tmp_path / "accelerate.yaml"
        path.write_text(exported.files["accelerate.yaml"])
        found = loader.load_config_from_file(str(path))
        assert found.num_processes == job.layout.world
        assert found.distributed_type.value == ("FSDP" if job.layout.zero else "MULTI_GPU")
        assert found.mixed_precision == "bf16"
