"""The list of models, and one entry of it."""

from __future__ import annotations

import json

import pytest

from shardwright.cli import execute
from shardwright.specs.sources.presets import list_presets


def test_every_preset_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if line.strip() and line.split()[0] != "name"]
    assert set(list_presets()) <= set(listed)
    assert any("gpt2 " in line and "124,439,808" in line for line in lines)


def test_json_has_exact_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert list(rows) == list_presets()
    assert rows["llama-3.1-70b"]["parameters"] == 70_553_706_496
    assert rows["llama-3.1-70b"]["layers"] == 80


@pytest.mark.parametrize("name", ["llama-3.1-8b", "meta-llama/Llama-3.1-8B"])
def test_one_entry_has_its_source(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert execute(["models", name, "--json"]) == 0
    entry = json.loads(capsys.readouterr().out)
    assert entry["slug"] == "llama-3.1-8b"
    assert entry["source"]
    assert entry["parameters"] == entry["published_parameters"] == 8_030_261_248
    assert execute(["models", name]) == 0
    assert entry["source"] in capsys.readouterr().out


def test_an_unknown_name_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["models", "lama-3.1-8b"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "llama-3.1-8b" in err
