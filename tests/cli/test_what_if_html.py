"""The page holds every point and needs nothing else."""

from __future__ import annotations

from html.parser import HTMLParser

from shardwright.cli import _what_if_html
from shardwright.cost_models.money import Terms
from shardwright.planner.what_if.api import WhatIfAnswer
from shardwright.planner.what_if.axes import axes_of
from shardwright.planner.what_if.rows import Limits, row_of
from tests.planner.what_if.small import infeasible, planned


class Tags(HTMLParser):
    """Counts what a page is made of, and checks that it closes what it opens."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.counts: dict[str, int] = {}
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "path", "circle"):
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "circle"):
            assert self.opened.pop() == tag


def answer(tokens: str | None) -> WhatIfAnswer:
    outcomes = {"8": planned(2, 8), "16": planned(1, 16), "24": infeasible("<b>too & large</b>")}
    rows = tuple(
        row_of({"gpus": gpus}, outcome, tokens, Terms(), Limits())
        for gpus, outcome in outcomes.items()
    )
    return WhatIfAnswer(axes_of(["gpus=8,16,24"]), rows, (), (), Limits(), Terms(), 3)


def test_the_page_is_whole() -> None:
    for tokens in ("1M", None):
        tags = Tags()
        text = _what_if_html.page(answer(tokens))
        tags.feed(text)
        assert tags.opened == []
        assert tags.links == []
        assert (tags.counts["circle"], tags.counts["tr"]) == (2, 4)
        assert "&lt;b&gt;too &amp; large" in text


def test_one_point_needs_no_picture() -> None:
    one = answer(None)
    only = WhatIfAnswer(one.axes, one.rows[:1], (), (), Limits(), Terms(), 1)
    assert "<svg" not in _what_if_html.page(only)
