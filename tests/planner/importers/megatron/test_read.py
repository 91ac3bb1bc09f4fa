"""Launch scripts to readings, of our own and of the samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.export_jobs import exported_jobs
from benchmarks.export_round_trip import plain
from shardwright.planner.importers.megatron.read import read_megatron
from shardwright.specs import InputError
from shardwright.specs.sources import resolve_model
from tests.planner.importers.megatron.scripts import BATCH, SCRIPTS, SIZES, Script, read_script
from tools.sources import ROOT

SAMPLES = ROOT.parent / "shared" / "data" / "samples" / "launch"


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_style_states_what_its_author_meant(name: str, tmp_path: Path) -> None:
    script = SCRIPTS[name]
    reading = read_script(tmp_path, script)
    assert {key: reading.stated[key] for key in script.stated} == dict(script.stated)
    if script.stated.get("dp") is not None:
        assert reading.layout is not None
        assert reading.layout.dp == script.stated["dp"]


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.json")), ids=lambda path: path.stem)
def test_samples_read_as_expected(path: Path) -> None:
    sample = json.loads(path.read_text(encoding="utf-8"))
    main = next(name for name in sample["files"] if not name.endswith(".env"))
    reading = read_megatron(path.parent / main)
    wanted = {name: value for name, value in sample["expected"].items() if name != "stages_note"}
    assert {name: reading.stated.get(name) for name in wanted} == wanted
    assert sample["env"].items() <= dict(reading.environment).items()


def test_samples_are_there_or_absent_with_a_word() -> None:
    if not SAMPLES.exists():
        pytest.skip("the samples of launch scripts are not beside this checkout")
    assert len(list(SAMPLES.glob("*.json"))) > 10


@pytest.mark.parametrize("file", ["train.sh", "train.sbatch"])
def test_exported_plans_come_back_with_the_same_layout(file: str, tmp_path: Path) -> None:
    """`benchmarks/export_round_trip.py` does so with 200."""
    for job, exported in exported_jobs("megatron-lm", 8, seed=1):
        (tmp_path / file).write_text(exported.files[file], encoding="utf-8")
        reading = read_megatron(tmp_path / file)
        assert reading.layout is not None
        assert plain(reading.layout, job.model) == plain(job.layout, job.model)
        assert (reading.conflicts, reading.gpus) == ((), job.layout.world)
        assert reading.model is not None
        assert reading.model.decoder.num_layers == job.model.decoder.num_layers


def test_variables_and_options_that_the_user_gives_hold(tmp_path: Path) -> None:
    script = SCRIPTS["defaults and arrays"]
    reading = read_script(
        tmp_path, script, given={"TP": "4", "NNODES": "1"}, more=("--seq-length", "512")
    )
    assert (reading.stated["tp"], reading.gpus, reading.stated["seq_len"]) == (4, 8, 512)
    sized = read_script(
        tmp_path, SCRIPTS["sizes chosen by an argument, hosts in a loop"], given={"1": "large"}
    )
    assert sized.stated["layers"] == 16


def test_a_model_and_a_world_in_place_of_the_scripts_own(tmp_path: Path) -> None:
    model = resolve_model("gpt2")
    reading = read_script(tmp_path, SCRIPTS["defaults and arrays"], model=model, world=32)
    assert reading.model == model
    assert reading.layout is not None
    assert (reading.layout.tp, reading.layout.dp) == (2, 16)
    assert any("--num-layers 8: gpt2 has 12" in text for text in reading.unread)


def test_a_degree_that_is_not_known_leaves_no_layout(tmp_path: Path) -> None:
    text = f"torchrun --nproc_per_node 8 p.py {SIZES} {BATCH} --tensor-model-parallel-size $TP\n"
    reading = read_script(tmp_path, Script(text, {}))
    assert reading.layout is None
    assert reading.conflicts == (
        "the grid is not known: --tensor-model-parallel-size: TP is not set in the script",
    )


def test_several_trainings_give_the_first_with_a_word(tmp_path: Path) -> None:
    text = (
        "for TP in 1 2; do\n torchrun --nproc_per_node 8 pretrain_gpt.py"
        f" {SIZES} {BATCH} --tensor-model-parallel-size $TP\ndone\n"
    )
    reading = read_script(tmp_path, Script(text, {}))
    assert reading.stated["tp"] == 1
    assert any("2 different trainings" in one for one in reading.unread)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"), ("echo hi\n", "starts no training program"),
        ("python train.py --lr 1\n", "no arguments of Megatron-LM"),
        (f"python p.py {SIZES} --micro-batch-size 0\n", "not a positive number"),
        (f"python p.py {SIZES} --micro-batch-size x\n", "not a whole number"),
        (f"python p.py {SIZES} {BATCH} --bf16 --fp16\n", "both --bf16 and --fp16"),
        (f"python p.py {SIZES} {BATCH} --num-attention-heads 7\n", "not a multiple"),
        (f"python p.py {SIZES} {BATCH} --num-layers 99999\n", "more than"),
        (
            f"python p.py {SIZES} {BATCH} --pipeline-model-parallel-layout 'Ett|ttL'\n",
            "places 4 layers",
        ),
        ("for i in 1; do\n", "has no `done`"), ("source run.sh\n", "reads itself"),
    ],
)  # fmt: skip
def test_scripts_that_are_wrong_give_one_line(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        read_script(tmp_path, Script(text, {}))
    assert "\n" not in str(caught.value)
