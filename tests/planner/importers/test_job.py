"""From a user's script to the planner's question."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.planner.importers.job import Asked, Job, choices_of, job_of, unknown_layout
from shardwright.planner.importers.reading import Reading
from shardwright.planner.importers.registry import Given
from shardwright.planner.question import Training
from shardwright.specs import InputError
from tests.planner.importers.megatron.scripts import BATCH, SCRIPTS, SIZES, Script

PLAIN = SCRIPTS["defaults and arrays"]
ASKED = Asked(cluster="dgx-a100-80gb")


def job(
    folder: Path, script: Script = PLAIN, asked: Asked = ASKED, given: Given | None = None
) -> Job:
    for name, text in {script.name: script.text, **script.files}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return job_of(folder / script.name, "megatron-lm", asked, given or Given())


def test_model_batch_and_devices_are_the_scripts_own(tmp_path: Path) -> None:
    one = job(tmp_path)
    question = one.question
    assert question.profile.devices.num_devices == 16
    assert (question.training.global_batch, question.training.seq_len) == (64, 1024)
    assert question.training.optimizer.beta2 == 0.999
    assert question.software.framework == "megatron-bridge"
    assert "vocab_size" in question.assumed
    assert one.notes == ()
    assert one.reading.layout is not None
    assert one.reading.layout.dp == 8


def test_what_is_typed_holds_against_the_script(tmp_path: Path) -> None:
    training = Training(global_batch="128", precision="fp16", optimizer="sgd")
    asked = replace(ASKED, gpus=8, training=training, stack="generic", model="gpt2")
    one = job(tmp_path, asked=asked)
    question = one.question
    assert question.model.name == "gpt2"
    assert question.training.global_batch == 128
    assert question.training.precision == "fp16"
    assert question.training.optimizer.name == "sgd"
    assert question.software.framework == "generic"
    assert "starts 16 devices, the cluster has 8" in one.notes[0]
    assert one.reading.gpus == 8


def test_an_accelerator_takes_its_counts_from_the_script(tmp_path: Path) -> None:
    text = f"torchrun --nproc_per_node 8 p.py {SIZES} {BATCH} --bf16\n"
    one = job(tmp_path, Script(text, {}), replace(ASKED, cluster="h100-sxm5-80gb"))
    assert one.question.source == "h100-sxm5-80gb:8x1"


def test_what_nobody_says_is_asked_for(tmp_path: Path) -> None:
    bare = SCRIPTS["a bare list of arguments"]
    with pytest.raises(InputError, match="does not state the number of devices"):
        job(tmp_path, bare)
    with pytest.raises(InputError, match="does not say on what accelerator"):
        job(tmp_path, asked=Asked())
    slurm = SCRIPTS["slurm with one task per device"]
    with pytest.raises(InputError, match="says h100, of which there are"):
        job(tmp_path, slurm, asked=Asked())
    text = "torchrun --nproc_per_node 8 p.py --num-layers 32 --hidden-size 4096 --bf16\n"
    with pytest.raises(InputError, match="of the same layers and width"):
        job(tmp_path, Script(text, {}))


def test_the_only_known_model_of_some_size_is_assumed_in_words(tmp_path: Path) -> None:
    text = "torchrun --nproc_per_node 8 p.py --num-layers 94 --hidden-size 4096 --bf16\n"
    question = job(tmp_path, Script(text, {})).question
    assert question.model.name == "qwen3-235b-a22b"
    assert "the only known one with 94 layers" in question.assumed["model"]


def test_batch_and_length_are_assumed_in_words_where_nothing_states_them(tmp_path: Path) -> None:
    text = "torchrun --nproc_per_node 8 p.py --tensor-model-parallel-size 2 --bf16\n"
    one = job(tmp_path, Script(text, {}), replace(ASKED, model="gpt2"))
    assert one.question.training.seq_len == 1024
    assert {"seq_len", "global_batch", "micro_batch"} <= one.question.assumed.keys()
    typed = replace(ASKED, model="gpt2", training=Training(global_batch="64", seq_len="512"))
    one = job(tmp_path, Script(text, {}), typed)
    assert (one.question.training.global_batch, one.question.training.seq_len) == (64, 512)
    assert "global_batch" not in one.question.assumed


def test_a_layout_that_is_not_known_cannot_be_estimated(tmp_path: Path) -> None:
    one = job(tmp_path, SCRIPTS["an answer that contradicts itself"])
    assert "8 devices are no multiple" in (unknown_layout(one.reading) or "")
    with pytest.raises(InputError, match="no multiple"):
        choices_of(one.reading)
    assert choices_of(Reading("x", "megatron-lm", choices={"tp": 2})) == {"tp": 2}
