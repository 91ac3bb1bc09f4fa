"""`export` writes a plan for other software, or says why that cannot run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cli import execute
from shardwright.specs import Plan


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    command = ["plan", "gpt2", "--cluster", "dgx-h100", "--gpus", "4", "--global-batch", "16",
               "--stack", "megatron-bridge"]  # fmt: skip
    assert execute([*command, "-o", str(path)]) == 0
    return path


def test_json(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["export", str(plan_file), "--to", "megatron-lm", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["target"] == "megatron-lm"
    assert answer["version"] == "main"
    assert ["--num-layers", "12"] in answer["arguments"]
    assert set(answer["files"]) == {"train.sh", "train.sbatch"}
    assert answer["written"] == []


def test_without_a_folder_the_files_go_to_stdout(
    plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["export", str(plan_file), "--to", "megatron-lm"]) == 0
    out = capsys.readouterr().out
    assert "# ==== train.sh ====" in out
    assert "--num-layers 12" in out


def test_a_folder_is_written_and_kept(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(plan_file), "--to", "megatron-lm", "-o", str(tmp_path / "out")]
    assert execute(command) == 0
    assert f"wrote     {tmp_path / 'out' / 'train.sh'}" in capsys.readouterr().out
    (tmp_path / "out" / "train.sh").write_text("mine")
    assert execute(command) == 2
    assert "already has train.sh" in capsys.readouterr().err
    assert execute([*command, "--force"]) == 0


def test_refusals(plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["export", str(plan_file), "--to", "abacus"]) == 2
    assert "megatron-lm" in capsys.readouterr().err
    plan = Plan.load(plan_file)
    split = plan.layout.model_copy(update={"loss_chunks": 3})
    path = tmp_path / "plan.json"
    plan.model_copy(update={"layout": split}).save(path)
    assert execute(["export", str(path), "--to", "megatron-lm"]) == 2
    assert "loss_chunks=1" in capsys.readouterr().err
