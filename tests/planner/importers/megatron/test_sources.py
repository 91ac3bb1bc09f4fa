"""Which program of a file is the training."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.planner.importers.megatron.sources import find_launch
from shardwright.specs import InputError
from tests.planner.importers.megatron.scripts import BATCH, SIZES


def test_the_training_is_told_from_what_prepares_it(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        f"python tools/preprocess_data.py --input x --workers 8\n"
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {BATCH}\n",
        encoding="utf-8",
    )
    found = find_launch(path, {})
    assert (found.launch.program, found.launch.line) == ("pretrain_gpt.py", 2)
    assert found.notes == []


def test_a_folder_is_no_script(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        find_launch(tmp_path, {})


def test_a_script_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("if grep x f; then :;\n" + "elif grep x f; then :;\n" * 2000 + "fi\n")
    with pytest.raises(InputError, match="nested deeper"):
        find_launch(path, {})
