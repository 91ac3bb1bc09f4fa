"""torchtitan's TOML: its defaults, older releases, and plans that were exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.export_jobs import exported_jobs
from benchmarks.export_round_trip import difference
from shardwright.planner.importers.reading import Reading
from shardwright.planner.importers.torchtitan import even_stops, read_torchtitan
from shardwright.specs import InputError, Precision, Recompute, ScheduleName

LLAMA3_8B = """\
[job]
description = "Llama 3 8B training"

[model]
name = "llama3"
flavor = "8B"
# converters = ["float8"]

[optimizer]
name = "AdamW"
lr = 3e-4

[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0
steps = 1000

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
pipeline_parallel_degree = 1
context_parallel_degree = 1

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""

LLAMA3_405B = """\
[model]
name = "llama3"
flavor = "405B"
converters = ["quantize.linear.float8"]
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = "full"
[compile]
enable = true
"""

PIPELINE = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
seq_len = 4096
[parallelism]
data_parallel_shard_degree = 2
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 2
[activation_checkpoint]
mode = "none"
"""

OF_2024 = """\
[model]
name = "llama3"
flavor = "70B"
norm_type = "rmsnorm"
tokenizer_path = "./tokenizer.model"
[optimizer]
name = "AdamW"
lr = 1.5e-4
[training]
batch_size = 8
seq_len = 8192
warmup_steps = 200
data_parallel_degree = -1
tensor_parallel_degree = 8
compile = true
[experimental]
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "full"
[float8]
enable_float8_linear = true
"""


def read(text: str, tmp_path: Path, world: int | None = None) -> Reading:
    path = tmp_path / "train.toml"
    path.write_text(text)
    return read_torchtitan(path, world=world)


def test_defaults_leave_the_world_open(tmp_path: Path) -> None:
    found = read(LLAMA3_8B, tmp_path)
    assert found.model is not None
    assert found.model.num_parameters == 8_030_261_248
    assert found.layout is None
    assert found.choices["zero"] == 3
    assert found.stated["dp"] is None
    assert any("operator" in word for word in found.unread)


def test_with_a_world(tmp_path: Path) -> None:
    found = read(LLAMA3_8B, tmp_path, world=8)
    assert found.layout is not None
    assert (found.layout.dp, found.layout.zero, found.layout.zero_shard_degree) == (8, 3, 8)
    assert found.training is not None
    assert found.training.global_batch == 8
    assert found.training.seq_len == 8192
    assert found.training.precision is Precision.BF16
    assert found.layout.reshard_after_forward


def test_a_large_one(tmp_path: Path) -> None:
    found = read(LLAMA3_405B, tmp_path, world=512)
    layout, training = found.layout, found.training
    assert layout is not None
    assert training is not None
    assert (layout.tp, layout.dp, layout.sequence_parallel) == (8, 64, True)
    assert training.precision is Precision.FP8_TENSOR
    assert layout.compile
    assert layout.recompute == (Recompute(policy="full"),)


def test_a_pipeline_spreads_layers_as_torchtitan_does(tmp_path: Path) -> None:
    found = read(PIPELINE, tmp_path)
    layout = found.layout
    assert found.gpus == 8
    assert layout is not None
    assert layout.schedule is ScheduleName.INTERLEAVED
    assert (layout.pp, layout.vpp, layout.micro_batch, layout.num_microbatches) == (2, 2, 2, 4)
    assert [stage.num_layers for stage in layout.stages] == [8, 9, 8, 7]
    assert not layout.reshard_after_forward, "weights stay whole under a pipeline by default"


def test_a_release_of_2024(tmp_path: Path) -> None:
    found = read(OF_2024, tmp_path, world=256)
    assert found.layout is not None
    assert (found.layout.tp, found.layout.dp, found.layout.micro_batch) == (8, 32, 8)
    assert found.training is not None
    assert found.training.precision is Precision.FP8_TENSOR
    assert found.training.optimizer.warmup_steps == 200


def test_every_second_layer(tmp_path: Path) -> None:
    text = LLAMA3_8B.replace('"op"', '"2"')
    found = read(text, tmp_path, world=8)
    assert found.layout is not None
    assert found.layout.recompute == (Recompute(policy="full", num_layers=16),)


@pytest.mark.parametrize(
    ("num_stages", "layers", "counts"),
    [
        (4, 32, [8, 9, 8, 7]),
        (1, 32, [32]),
        (2, 3, [2, 1]),
        (8, 126, [15, 16, 16, 16, 16, 16, 16, 15]),
    ],
)
def test_even_stages(num_stages: int, layers: int, counts: list[int]) -> None:
    stops = even_stops(num_stages, layers, 1, 1) if num_stages > 1 else even_stops(1, layers, 0, 0)
    assert stops is not None
    assert [b - a for a, b in zip([0, *stops], stops, strict=False)] == counts
    assert even_stops(40, 32, 1, 1) is None


def test_contradictions_are_said(tmp_path: Path) -> None:
    found = read(PIPELINE, tmp_path, world=16)
    assert found.conflicts == ("the degrees multiply to 8 ranks, not 16",)
    assert found.stated["consistent"] is False
    odd = read(LLAMA3_405B, tmp_path, world=12)
    assert odd.conflicts
    assert odd.layout is None


def test_what_is_not_known_is_listed(tmp_path: Path) -> None:
    text = PIPELINE.replace("Interleaved1F1B", "LoopedBFS").replace("llama3", "my_model")
    found = read(text + "[fault_tolerance]\nenable = true\n[other]\nx = 1\n", tmp_path)
    words = " ".join(found.unread)
    assert found.model is None
    for part in ("my_model 8B", "LoopedBFS", "[other]"):
        assert part in words


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "is no TOML"),
        ("", "no configuration of torchtitan"),
        ("[tool]\nx = 1\n", "no configuration of torchtitan"),
        ("[parallelism]\ntensor_parallel_degree = 0\n", "degree"),
        (
            '[training]\nseq_len = "long"\n[parallelism]\ndata_parallel_shard_degree = 2\n',
            "seq_len",
        ),
    ],
)
def test_wrong_files_give_one_clear_line(text: str, word: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(text, tmp_path)
    assert word in str(caught.value)


def test_exported_plans_come_back() -> None:
    """A sample; `benchmarks/export_round_trip.py` takes 200."""
    for job, exported in exported_jobs("torchtitan", 40, seed=1):
        assert difference("torchtitan", job, exported) is None
