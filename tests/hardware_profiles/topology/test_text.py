"""What pasting does to a text is undone."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.topology.text import clean, fields_of, lines_of, number


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("\x1b[4mGPU0\x1b[0m", "GPU0"),
        ("[4mGPU0[0m", "GPU0"),
        ("GPU[0]", "GPU[0]"),
        ("a\u00a0b\u2003c", "a b c"),
        ("0\u201115", "0-15"),
        ("\ufeffx\u200b", "x"),
        ("│ a │", "| a |"),
        ("┌──┐", "+--+"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("MTT 显卡", "MTT 显卡"),
    ],
)
def test_clean(raw: str, plain: str) -> None:
    assert clean(raw) == plain


def test_lines_and_fields() -> None:
    assert lines_of("> a\n  > b\nc") == ["a", "b", "c"]
    assert fields_of("| a | b\tc |") == ["a", "b", "c"]
    assert number("about 1,234.5 W") == 1234.5
    assert number("none") is None
