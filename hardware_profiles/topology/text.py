"""Captured text as the tool printed it: without colours, odd spaces and what pasting added."""

from __future__ import annotations

import re
import unicodedata

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Za-z0-9]|\x1b\].*?(?:\x07|\x1b\\)")
_BARE_COLOURS = re.compile(r"\[(?:\d{1,2})(?:;\d{1,3})*m")
"""Colours of which copying lost the escape character: ``[4mGPU0`` ... ``[0m``."""
_DASHES = dict.fromkeys([*range(0x2010, 0x2016), 0x2212, 0xFF0D], "-")
_BARS = dict.fromkeys([0x2502, 0x2503, 0x2506, 0x250A, 0x254E, 0x2551, 0xFF5C], "|")
_RULES = dict.fromkeys([0x2500, 0x2501, 0x2504, 0x2508, 0x2550], "-")
_CORNERS = dict.fromkeys(set(range(0x250C, 0x2571)) - _BARS.keys() - _RULES.keys(), "+")
"""Signs of the Unicode blocks for punctuation and for drawing boxes."""


def clean(text: str) -> str:
    """Plain text: no colours, every space a space or a tab, plain dashes and bars.

    Signs that take no room (byte-order marks, zero-width spaces) go; a carriage return within a
    line, as progress bars leave it, ends the line.
    """
    text = _BARE_COLOURS.sub("", _ESCAPES.sub("", text))
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = text.translate(_DASHES | _BARS | _RULES | _CORNERS)
    return "".join(_plain(sign) for sign in text)


def _plain(sign: str) -> str:
    if sign in "\n\t" or " " <= sign <= "~":
        return sign
    kind = unicodedata.category(sign)
    if kind == "Zs":
        return " "
    return "" if kind in ("Cf", "Cc") else sign


def lines_of(text: str) -> list[str]:
    """The lines of a clean text, without the marks of a quotation or of a comment."""
    return [re.sub(r"^\s*(?:>|#(?=\s))\s?", "", line) for line in text.split("\n")]


def fields_of(line: str) -> list[str]:
    """The words of a line of a table; bars between columns are spaces."""
    return line.replace("|", " ").split()


def number(text: str) -> float | None:
    """The first number in a text; thousands may be apart by commas."""
    found = re.search(r"\d[\d,]*\.?\d*", text)
    return float(found[0].replace(",", "")) if found else None
