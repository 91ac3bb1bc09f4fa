"""`stacks` lists the software of the catalogue with its sources."""

from __future__ import annotations

import json

import pytest

from shardwright.cli import execute
from shardwright.hardware_profiles.stacks import list_stacks


def test_every_stack_is_listed_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["stacks", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["stacks"]
    assert [row["name"] for row in rows] == list_stacks()
    assert all(row["source"] and row["description"] for row in rows)
    assert execute(["stacks"]) == 0
    assert "torchtitan" in capsys.readouterr().out


def test_one_stack_has_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["stacks", "generic"]) == 0
    out = capsys.readouterr().out
    assert "stack.compute_ratio" in out
    assert "the centre of all stacks" in out
    assert execute(["stacks", "generic", "--json"]) == 0
    entry = json.loads(capsys.readouterr().out)
    assert entry["parameters"]["stack.compute_ratio"] > 0
    assert entry["software"]["attention_kernel"] == "flash"


def test_an_unknown_stack_ends_with_2_and_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["stacks", "torchtitn"]) == 2
    assert "torchtitan" in capsys.readouterr().err
