"""What a model is made of agrees with the sums of its parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cli import execute
from shardwright.cli.model import describe
from tests.cli import samples
from tools.sources import ROOT


def test_blocks_sum_to_the_model() -> None:
    spec = samples.model()
    described = describe(spec, seq_len=16)
    (tower,) = described["towers"]
    assert sum(block["parameters"] for block in tower["blocks"]) == spec.num_parameters
    assert described["parameters"] == described["active_parameters"] == spec.num_parameters
    assert described["flops_per_token"]["model_flops_6n"] == 6 * spec.num_parameters


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["model", "gpt2", "--seq-len", "1k", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["parameters"] == 124_439_808
    assert described["seq_len"] == 1024
    assert any("dropout" in note for note in described["notes"])


def test_longer_sequences_cost_more_per_token() -> None:
    flops = [
        describe(samples.model(), seq_len)["flops_per_token"]["model_flops_megatron"]
        for seq_len in (16, 4096)
    ]
    assert flops[0] < flops[1]


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["model", str(ROOT / "examples" / "demo")]) == 0
    out = capsys.readouterr().out
    assert "parameters  6,524,160" in out
    assert "num kv heads 4" in out


def test_experts_and_prediction_layers_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["model", "deepseek-v3", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["parameters"] == 671_026_419_200
    assert described["active_parameters"] == 37_552_297_472
    assert described["mtp_parameters"] == 11_610_068_224
    assert execute(["model", "deepseek-v3"]) == 0
    assert "37,552,297,472 of them active" in capsys.readouterr().out


def test_the_head_of_an_encoder(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["model", "bert-base-uncased", "--head", "mlm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 109_514_298
    assert execute(["model", "bert-base-uncased", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 109_482_240
    assert execute(["model", "gpt2", "--head", "mlm"]) == 2
    assert "no mlm head" in capsys.readouterr().err
    assert execute(["model", "bert-base-uncased", "--head", "squad"]) == 2


def test_every_tower_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["model", "llava-1.5-7b"]) == 0
    out = capsys.readouterr().out
    assert "vision block" in out
    assert "decoder block" in out


def test_a_missing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    assert execute(["model", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
