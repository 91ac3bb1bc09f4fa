"""Whose files can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.planner.importers.registry import (
    TARGETS,
    Given,
    read_file,
    target_named,
    variables_from,
)
from shardwright.specs import InputError
from tests.planner.importers.megatron.scripts import SCRIPTS


def test_names_and_their_aliases() -> None:
    assert target_named("Megatron") == "megatron-lm"
    assert {target_named(name) for name in TARGETS} == set(TARGETS)
    with pytest.raises(InputError, match="--from"):
        target_named("megatrom-lmm")


def test_every_target_has_a_reader(tmp_path: Path) -> None:
    script = SCRIPTS["defaults and arrays"]
    path = tmp_path / "run.sh"
    path.write_text(script.text, encoding="utf-8")
    assert read_file(path, "megatron-lm").gpus == 16
    assert read_file(path, "megatron-lm", Given(world=32)).gpus == 32
    for target in set(TARGETS) - {"megatron-lm"}:
        with pytest.raises(InputError):
            read_file(path, target)
        with pytest.raises(InputError, match="--set"):
            read_file(path, target, Given(variables={"A": "1"}))


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        read_file(tmp_path / "gone.sh", "megatron-lm")


def test_variables_are_names_with_values() -> None:
    assert variables_from(["A=1", "B_C=x=y", "1=z"]) == {"A": "1", "B_C": "x=y", "1": "z"}
    for text in ("A", "=1", "A-B=1", "ä=1"):
        with pytest.raises(InputError, match="--set"):
            variables_from([text])
