"""Plans are files: byte for byte the same after a round trip, and clear when they are not plans."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shardwright.specs import InputError, Plan
from shardwright.specs.plan import read_text, write_text
from tests.specs.small import plan


def test_a_plan_comes_back_byte_for_byte(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "plan.json"
    plan().save(file)
    text = file.read_bytes()
    loaded = Plan.load(file)
    assert loaded == plan()
    loaded.save(file)
    assert file.read_bytes() == text
    assert os.listdir(file.parent) == ["plan.json"]


def test_the_text_does_not_depend_on_how_the_file_was_written(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(json.loads(plan().to_json()), sort_keys=True))
    assert Plan.load(file).to_json() == plan().to_json()


def test_floats_keep_every_digit() -> None:
    assert Plan.from_json(plan().to_json()).prediction.bubble_fraction == 1 / 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": "shardwright.plan/9"}, "schema_version"),
        ({"layout": None}, "layout"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_what_is_not_a_plan_is_refused_by_field(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(json.loads(plan().to_json()) | change))
    with pytest.raises(InputError, match=message) as caught:
        Plan.load(file)
    assert str(file) in caught.value.problem


@pytest.mark.parametrize("what", ["missing", "folder", "binary"])
def test_unreadable_files(tmp_path: Path, what: str) -> None:
    file = tmp_path / what
    if what == "folder":
        file.mkdir()
    elif what == "binary":
        file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="plan file"):
        read_text(file, what="plan")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    target.mkdir()  # a rename onto a folder fails, as a full disk would
    with pytest.raises(InputError, match="cannot write"):
        write_text(target, "text")
    assert os.listdir(tmp_path) == ["plan.json"]
