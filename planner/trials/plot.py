"""Timed layouts as SVG: a bar for each, its measured terms, and what was predicted.

Written by hand, so that no plotting library is needed. A bar is the measured step of the busiest
pipeline rank, by term; the hollow mark is the prediction, the full one that after correction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from shardwright.planner.trials.terms import IN_WORDS
from shardwright.specs.units import format_seconds

_WIDTH, _LEFT, _TOP, _ROW = 560, 330, 70, 26
"""Pixels: the longest bar, the space before and above, and a row."""
_COLOURS = {
    "compute_forward": "#0072b2", "compute_backward": "#56b4e9", "recompute": "#999999",
    "tp_comm": "#d55e00", "dp_comm": "#e69f00", "waiting": "#cc79a7", "optimizer": "#009e73",
    "data": "#f0e442", "other": "#000000",
}  # fmt: skip
"""Okabe and Ito's, which people who see fewer colours can tell apart too."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One layout."""

    name: str
    step_time_s: float
    terms_s: Mapping[str, float]
    """Of one pipeline rank; what they leave of the step stays white."""
    predicted_s: float
    corrected_s: float | None


def plot(bars: Sequence[Bar], *, title: str) -> str:
    """One SVG, the bars in the order given."""
    longest_s = max(max(b.step_time_s, b.predicted_s, b.corrected_s or 0.0) for b in bars)
    width, height = _LEFT + _WIDTH + 90, _TOP + _ROW * len(bars) + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(10, 20, title, size=14),
        *_legend(),
    ]
    for row, bar in enumerate(bars):
        lines += _bar(bar, _TOP + row * _ROW, _WIDTH / longest_s)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    x = 10
    for term, colour in _COLOURS.items():
        yield f'<rect x="{x}" y="34" width="10" height="10" fill="{colour}"/>'
        yield _text(x + 14, 43, IN_WORDS[term])
        x += 24 + 6 * len(IN_WORDS[term])


def _bar(bar: Bar, y: int, pixels_per_s: float) -> Iterator[str]:
    yield _text(_LEFT - 8, y + 14, bar.name, anchor="end")
    x = float(_LEFT)
    for term, colour in _COLOURS.items():
        width = bar.terms_s.get(term, 0.0) * pixels_per_s
        if width > 0:
            yield (
                f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="14" fill="{colour}">'
                f"<title>{IN_WORDS[term]} {format_seconds(bar.terms_s[term])}</title></rect>"
            )
            x += width
    end = _LEFT + bar.step_time_s * pixels_per_s
    yield _text(end + 8, y + 14, format_seconds(bar.step_time_s))
    for seconds, fill in ((bar.predicted_s, "white"), (bar.corrected_s, "black")):
        if seconds is not None:
            at = _LEFT + seconds * pixels_per_s
            yield f'<circle cx="{at:.1f}" cy="{y + 10}" r="4" fill="{fill}" stroke="black"/>'


def _text(x: float, y: float, words: str, *, size: int = 11, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )
