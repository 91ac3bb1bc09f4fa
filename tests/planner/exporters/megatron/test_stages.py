"""Stages by the plainest option, and the layout string both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.planner.exporters.megatron.stages import layout_string, parse_layout_string
from tests.planner.exporters.megatron.exporting import arguments, refusal

FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
LAYOUT = "--pipeline-model-parallel-layout"
VPP = "--num-layers-per-virtual-pipeline-stage"


def test_even_stages_need_no_option() -> None:
    found = arguments(pp=4)
    assert found.number("--pipeline-model-parallel-size") == 4
    assert not found.present((FIRST, LAST, LAYOUT, VPP))


def test_even_virtual_stages_are_layers_each() -> None:
    assert arguments(pp=2, vpp=3).number(VPP) == 2


def test_other_ends_are_numbers_and_others_are_a_string() -> None:
    ends = arguments(pp=4, boundaries=(2, 6, 10))
    assert (ends.number(FIRST), ends.number(LAST)) == (2, 2)
    free = arguments(pp=4, boundaries=(2, 7, 9))
    assert free.text(LAYOUT) == "Ett|t*5|tt|t*3L"
    assert not free.present((FIRST, LAST))


def test_a_stage_of_the_embedding_alone_needs_a_string() -> None:
    assert arguments(pp=4, boundaries=(0, 6, 12)).text(LAYOUT) == "E|(t*6|)*2L"


def test_uneven_virtual_stages() -> None:
    assert arguments(pp=2, vpp=2, boundaries=(2, 5, 9)).text(LAYOUT) == "Ett|t*3|t*4|t*3L"


def test_predictions_stand_before_the_loss() -> None:
    found = arguments("deepseek_v3", pp=4, boundaries=(2, 7, 9))
    assert found.text(LAYOUT) == "Ett|t*5|tt|t*3mL"


def test_core_09_has_no_string() -> None:
    assert "not alike" in refusal(version="core_r0.9.0", pp=4, boundaries=(2, 7, 9))
    assert "no stage without layers" in refusal(version="core_r0.9.0", pp=4, boundaries=(0, 6, 12))
    ends = arguments(version="core_r0.9.0", pp=4, boundaries=(2, 6, 10))
    assert ends.number(FIRST) == 2


@given(st.lists(st.integers(0, 9), min_size=2, max_size=40), st.integers(0, 2))
def test_the_string_says_every_stage(counts: list[int], predictions: int) -> None:
    stages = parse_layout_string(layout_string(counts, predictions))
    assert [letters.count("t") for letters in stages] == counts
    assert stages[0].startswith("E")
    assert stages[-1].endswith("m" * predictions + "L")


def test_reading_a_string_as_upstream_does() -> None:
    assert parse_layout_string("Et*3|(tt|)*2,m|L") == ["Ettt", "tt", "tt", "m", "L"]
    assert parse_layout_string("xy".replace("xy", "E(t|t)*2L")) == ["Et", "tt", "tL"]
    with pytest.raises(ValueError, match="letters"):
        parse_layout_string("Ez|L")
