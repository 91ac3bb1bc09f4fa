"""Every captured text reads to what it says: our own, and the shared samples where they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.hardware_profiles.topology import read_topology
from shardwright.specs import InputError
from tests.hardware_profiles.topology import samples

SHARED = Path(__file__).parents[4] / "shared/data/samples/topology"


@pytest.mark.parametrize("name", samples.NAMES)
def test_every_fixture_reads_to_what_it_says(name: str) -> None:
    reading, wanted = samples.reading(name), samples.expected(name)
    assert list(reading.kinds) == wanted["kinds"]
    assert reading.as_json() == wanted["expected"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared samples are not here")
def test_every_shared_sample_reads_to_what_is_expected() -> None:
    sheets = sorted(SHARED.glob("*.json"))
    assert sheets
    for sheet in sheets:
        sample = json.loads(sheet.read_text(encoding="utf-8"))
        for name in sample["files"]:
            reading = read_topology((SHARED / name).read_text(encoding="utf-8"), source=name)
            assert reading.as_json() == sample["expected"], name
            assert reading.kind == sample["kind"]


@pytest.mark.parametrize("name", ["nvswitch_8_nics_tabs", "ibstat_two_ports", "scontrol_two_types"])
def test_line_ends_and_trailing_spaces_do_not_matter(name: str) -> None:
    text = "".join(f"{line}  \r\n" for line in samples.text(name).split("\n"))
    assert read_topology(text).as_json() == samples.expected(name)["expected"]


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "it is empty"), ("  \n\t\n", "it is empty"), ("hello there\nworld", "'hello there'")],
)
def test_what_no_tool_prints_is_refused(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as caught:
        read_topology(text, source="my.txt")
    assert "my.txt is not the output" in str(caught.value)
    assert "nvidia-smi" in str(caught.value.fix)
