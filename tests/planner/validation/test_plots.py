from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from shardwright.planner.validation.plots import plot, write_plots
from shardwright.specs import InputError
from tests.planner.validation.test_scores import timed

SVG = "{http://www.w3.org/2000/svg}"


def dots(text: str) -> dict[str, tuple[float, float]]:
    """Where each row's dot is, by the words on hovering."""
    root = ElementTree.fromstring(text)
    found = {}
    for circle in root.iter(f"{SVG}circle"):
        title = circle.find(f"{SVG}title")
        if title is not None and title.text:
            place = (float(circle.attrib["cx"]), float(circle.attrib["cy"]))
            found[title.text.partition(":")[0]] = place
    return found


def test_dots_lie_where_their_times_say() -> None:
    rows = [timed("low", 1.0, 1.0), timed("high", 10.0, 10.0), timed("mid", 10**0.5, 1.0)]
    found = dots(plot(rows, title="t"))
    assert found["low"] == (70, 520)
    assert found["high"] == (550, 40)
    assert found["mid"] == (310, 520)


def test_rows_without_a_prediction_are_left_out() -> None:
    assert set(dots(plot([timed("a", 1, 1), timed("b", 1, None)], title="t"))) == {"a"}


def test_names_are_escaped_and_an_empty_plot_is_one() -> None:
    row = timed("<a&b>", 1, 1, accelerator="x<y")
    assert "<a&b>" in dots(plot([row], title="<&>"))
    assert ElementTree.fromstring(plot([], title="none")).tag == f"{SVG}svg"


class TestFiles:
    def test_one_per_stack_and_one_of_all(self, tmp_path: Path) -> None:
        rows = [timed("a", 1, 1, stack="x/y z"), timed("b", 1, 1, stack="overall")]
        paths = write_plots(rows, tmp_path / "new" / "folder")
        assert [path.name for path in paths] == ["overall.svg", "x-y-z.svg", "stack-overall.svg"]
        assert set(dots(paths[0].read_text())) == {"a", "b"}
        assert set(dots(paths[1].read_text())) == {"a"}

    def test_ours_are_replaced_others_are_not(self, tmp_path: Path) -> None:
        write_plots([timed("a", 1, 1)], tmp_path)
        write_plots([timed("b", 1, 1)], tmp_path)
        assert set(dots((tmp_path / "s.svg").read_text())) == {"b"}
        (tmp_path / "s.svg").write_text("mine")
        with pytest.raises(InputError, match="no plot of ours"):
            write_plots([timed("c", 1, 1)], tmp_path)
        assert (tmp_path / "s.svg").read_text() == "mine"
        assert set(dots((tmp_path / "overall.svg").read_text())) == {"b"}

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("")
        with pytest.raises(InputError, match="no folder"):
            write_plots([timed("a", 1, 1)], tmp_path / "f")
