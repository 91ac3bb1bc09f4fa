"""The points of `what-if` as one page that needs nothing else: a picture and a table."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.cli._what_if import csv_rows
from shardwright.planner.what_if.rows import Row

if TYPE_CHECKING:
    from shardwright.planner.what_if.api import WhatIfAnswer

_WIDTH, _HEIGHT, _MARGIN = 640, 360, 60
_STYLE = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}"
    "td,th{padding:3px 8px;border-bottom:1px solid #ccc;text-align:left;white-space:nowrap}"
    "tr.front{font-weight:bold}tr.none{color:#888}"
)


def write_html(path: Path, answer: WhatIfAnswer) -> None:
    """The page; raises `InputError` where the file cannot be written."""
    from shardwright.specs.plan import write_text

    write_text(path, page(answer))


def page(answer: WhatIfAnswer) -> str:
    """The HTML text."""
    title = "What if: " + ", ".join(f"{axis.name} varies" for axis in answer.axes)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1>{_picture(answer)}{_table(answer)}</body></html>\n"
    )


def _table(answer: WhatIfAnswer) -> str:
    records = csv_rows(answer)
    used = [name for name in records[0] if any(one[name] not in (None, "") for one in records)]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in used)
    body = "".join(
        f'<tr class="{_kind(row)}">'
        + "".join(f"<td>{_cell(record[name])}</td>" for name in used)
        + "</tr>"
        for row, record in zip(answer.rows, records, strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _kind(row: Row) -> str:
    if row.step_time_s is None:
        return "none"
    return "front" if row.is_on_front else "plan"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return html.escape(f"{value:.6g}" if isinstance(value, float) else f"{value}")


def _picture(answer: WhatIfAnswer) -> str:
    """Time against money (or devices) as a scatter plot; nothing where there is one point."""
    planned = [row for row in answer.rows if row.step_time_s is not None]
    places = [_place(row) for row in planned]
    if len(places) < 2:
        return ""
    most_x, most_y = (max(place[axis] for place in places) for axis in (0, 1))
    dots = "".join(
        f'<circle cx="{_MARGIN + x / most_x * (_WIDTH - 2 * _MARGIN):.1f}"'
        f' cy="{_HEIGHT - _MARGIN - y / most_y * (_HEIGHT - 2 * _MARGIN):.1f}" r="5"'
        f' fill="{"#c33" if row.is_on_front else "#999"}"><title>{_label(row)}</title></circle>'
        for row, (x, y) in zip(planned, places, strict=True)
    )
    costed = answer.rows[0].cost is not None
    across, up = ("GPU-hours", "days") if costed else ("devices", "seconds per million tokens")
    frame = (
        f'<path d="M{_MARGIN} {_MARGIN}V{_HEIGHT - _MARGIN}H{_WIDTH - _MARGIN}" fill="none"'
        f' stroke="#333"/><text x="{_WIDTH // 2}" y="{_HEIGHT - 15}">{across}, to {most_x:,.4g}'
        f'</text><text x="10" y="{_MARGIN - 20}">{up}, to {most_y:,.4g}; red: on the front</text>'
    )
    return f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img">{frame}{dots}</svg>'


def _place(row: Row) -> tuple[float, float]:
    if row.cost is not None:
        return row.cost.gpu_hours, row.cost.days
    assert row.outcome.prediction is not None
    return row.num_devices, 1e6 / row.outcome.prediction["tokens_per_s"]


def _label(row: Row) -> str:
    return html.escape(", ".join(f"{name} {value}" for name, value in row.varied.items()))
