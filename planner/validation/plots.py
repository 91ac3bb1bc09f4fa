"""Predicted against measured step times as SVG: log-log, one dot a row, colours by accelerator.

The files are written by hand, so that no plotting library is needed. The middle line is equality,
the dashed ones are `MARGIN` to either side of it. Hovering over a dot names the row.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from shardwright.planner.validation.results import RowResult
from shardwright.planner.validation.scores import NOT_STATED
from shardwright.specs import InputError
from shardwright.specs.plan import check_folder, write_text
from shardwright.specs.units import format_seconds

MARGIN = 0.2
_SIZE, _LEFT, _TOP, _LEGEND = 480, 70, 40, 200
"""Pixels: the square that holds the dots, the space before and above it, and behind it."""
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
"""Okabe and Ito's, which people who see fewer colours can tell apart too."""
_MARK = "<!-- shardwright validate -->"
"""By which a file is known as ours and may be replaced."""


def write_plots(results: Sequence[RowResult], folder: Path) -> tuple[Path, ...]:
    """``overall.svg`` and one file per stack, in a folder that is made where it is missing.

    Raises:
        InputError: the folder cannot be written, or holds another file of such a name.
    """
    by_name: dict[str, list[RowResult]] = {"overall": []}
    for result in results:
        if result.ratio is not None:
            by_name["overall"].append(result)
            by_name.setdefault(_file_stem(result.stack or NOT_STATED), []).append(result)
    check_folder(folder)
    paths = [folder / f"{name}.svg" for name in by_name]
    for path in paths:
        _check_ours(path)
    for path, (name, rows) in zip(paths, by_name.items(), strict=True):
        write_text(path, plot(rows, title=name))
    return tuple(paths)


def _file_stem(stack: str) -> str:
    stem = re.sub(r"[^\w.-]+", "-", stack).strip(".-") or "stack"
    return f"stack-{stem}" if stem == "overall" else stem[:100]


def _check_ours(path: Path) -> None:
    if not path.exists():
        return
    ours = path.is_file() and _MARK in path.read_text(encoding="utf-8", errors="replace")[:500]
    if not ours:
        raise InputError(
            f"{path} exists and is no plot of ours, so it is left as it is",
            fix="choose another folder with -o",
        )


def plot(results: Sequence[RowResult], *, title: str) -> str:
    """One SVG of these rows; those without a prediction are left out."""
    shown = [result for result in results if result.ratio is not None]
    seconds = [s for r in shown for s in (r.measured_step_time_s, r.predicted_step_time_s) if s]
    scale = _Scale(min(seconds, default=1.0), max(seconds, default=1.0))
    width, height = _LEFT + _SIZE + _LEGEND, _TOP + _SIZE + 60
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        _MARK,
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(_LEFT, _TOP - 15, f"{title}: {len(shown)} rows", size=15),
        *_axes(scale),
        *_guides(scale),
        *_dots(shown, scale),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


class _Scale:
    """From seconds to pixels, both axes alike, from one power of ten to another."""

    def __init__(self, low_s: float, high_s: float) -> None:
        self.first = math.floor(math.log10(low_s))
        self.last = max(self.first + 1, math.ceil(math.log10(high_s)))

    def _fraction(self, seconds: float) -> float:
        return (math.log10(seconds) - self.first) / (self.last - self.first)

    def x(self, seconds: float) -> float:
        return _LEFT + _SIZE * self._fraction(seconds)

    def y(self, seconds: float) -> float:
        return _TOP + _SIZE * (1 - self._fraction(seconds))


def _text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def _line(start: tuple[float, float], end: tuple[float, float], style: str) -> str:
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
        f" {style}/>"
    )


def _axes(scale: _Scale) -> Iterator[str]:
    bottom, right = _TOP + _SIZE, _LEFT + _SIZE
    grid = 'stroke="#dddddd"'
    for power in range(scale.first, scale.last + 1):
        seconds = 10.0**power
        x, y = scale.x(seconds), scale.y(seconds)
        yield _line((x, _TOP), (x, bottom), grid)
        yield _line((_LEFT, y), (right, y), grid)
        label = format_seconds(seconds)
        yield _text(x, bottom + 18, label, anchor="middle")
        yield _text(_LEFT - 8, y + 4, label, anchor="end")
    frame = f'x="{_LEFT}" y="{_TOP}" width="{_SIZE}" height="{_SIZE}"'
    yield f'<rect {frame} fill="none" stroke="black"/>'
    yield _text(_LEFT + _SIZE / 2, bottom + 42, "measured step time", anchor="middle")
    middle = _TOP + _SIZE / 2
    yield (
        f'<text x="16" y="{middle:.1f}" text-anchor="middle"'
        f' transform="rotate(-90 16 {middle:.1f})">predicted step time</text>'
    )


def _guides(scale: _Scale) -> Iterator[str]:
    """Equality, and `MARGIN` to either side of it, cut off at the frame."""
    low, high = 10.0**scale.first, 10.0**scale.last
    for ratio, style in (
        (1.0, 'stroke="black"'),
        (1 + MARGIN, 'stroke="#888888" stroke-dasharray="4 4"'),
        (1 - MARGIN, 'stroke="#888888" stroke-dasharray="4 4"'),
    ):
        start, end = max(low, low / ratio), min(high, high / ratio)
        yield _line(
            (scale.x(start), scale.y(start * ratio)), (scale.x(end), scale.y(end * ratio)), style
        )


def _dots(results: Sequence[RowResult], scale: _Scale) -> Iterator[str]:
    by_accelerator: dict[str, list[RowResult]] = defaultdict(list)
    for result in results:
        by_accelerator[result.accelerator or NOT_STATED].append(result)
    for number, (accelerator, rows) in enumerate(sorted(by_accelerator.items())):
        colour = _COLOURS[number % len(_COLOURS)]
        x, y = _LEFT + _SIZE + 20, _TOP + 12 + 18 * number
        yield f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colour}"/>'
        yield _text(x + 10, y, f"{accelerator} ({len(rows)})")
        yield from (_dot(row, colour, scale) for row in rows)


def _dot(result: RowResult, colour: str, scale: _Scale) -> str:
    measured, predicted = result.measured_step_time_s, result.predicted_step_time_s
    assert measured is not None
    assert predicted is not None
    words = (
        f"{result.id}: {format_seconds(measured)} measured, {format_seconds(predicted)} predicted"
    )
    return (
        f'<circle cx="{scale.x(measured):.1f}" cy="{scale.y(predicted):.1f}" r="3.5"'
        f' fill="{colour}" fill-opacity="0.6"><title>{escape(words)}</title></circle>'
    )
