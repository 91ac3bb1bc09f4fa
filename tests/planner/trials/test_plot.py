"""The drawing is XML whose bars are as long as their times."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from shardwright.planner.trials.plot import Bar, plot

BARS = [
    Bar("tp=2 & more", 2.0, {"compute_forward": 0.5, "waiting": 1.0}, 1.5, 1.9),
    Bar("pp=2", 4.0, {"compute_forward": 4.0}, 3.0, None),
]


def test_bars_have_their_lengths() -> None:
    drawn = ElementTree.fromstring(plot(BARS, title="two"))
    titled = [one for one in drawn if len(one)]
    widths = [float(one.attrib["width"]) for one in titled]
    assert widths[1] / widths[0] == pytest.approx(2.0, rel=0.01)
    assert widths[2] / widths[0] == pytest.approx(8.0, rel=0.01)
    texts = [one.text for one in drawn if one.tag.endswith("text")]
    assert "tp=2 & more" in texts
    marks = [one for one in drawn if one.tag.endswith("circle")]
    assert [one.attrib["fill"] for one in marks] == ["white", "black", "white"]
