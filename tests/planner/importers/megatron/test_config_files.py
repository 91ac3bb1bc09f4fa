"""DeepSpeed's configuration beside a script."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.megatron.config_files import zero_stage_of
from tests.planner.importers.megatron.scripts import arguments_of


@pytest.mark.parametrize(
    ("text", "wanted"),
    [('{"zero_optimization": {"stage": 2}}', 2), ("{}", None), ("[", None), ("[1]", None),
     ('{"zero_optimization": {"stage": "auto"}}', None), (None, None)],
)  # fmt: skip
def test_the_stage(text: str | None, wanted: int | None) -> None:
    arguments = arguments_of("--deepspeed_config ds.json")
    assert zero_stage_of(arguments, lambda path: text) == wanted


def test_a_missing_file_is_noted() -> None:
    arguments = arguments_of("--deepspeed_config ds.json")
    zero_stage_of(arguments, lambda path: None)
    assert arguments.unread == ["--deepspeed_config ds.json: not beside the script"]
