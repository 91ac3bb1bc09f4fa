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


def test_a_missing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    assert execute(["model", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
