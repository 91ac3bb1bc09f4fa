"""`DryRunReport`: what ranks of a plan were found to build and do, beside what the plan says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from shardwright.specs import Spec
from shardwright.specs.units import format_bytes

DRY_RUN_SCHEMA: Literal["shardwright.dry-run/1"] = "shardwright.dry-run/1"

Unit = Literal["", "parameters", "bytes", "calls", "FLOPs"]


class Check(Spec):
    """One number, or one set of layers or ranks in words."""

    what: str
    unit: Unit = ""
    planned: int | str
    built: int | str
    agrees: bool


class RankReport(Spec):
    """One rank."""

    rank: NonNegativeInt
    tp: NonNegativeInt
    dp: NonNegativeInt
    pp: NonNegativeInt
    checks: tuple[Check, ...]
    differences: tuple[str, ...]
    """What is not as planned, each in one line with its numbers; empty where all is."""


class DryRunReport(Spec):
    """All ranks that were asked for."""

    schema_version: Literal["shardwright.dry-run/1"] = DRY_RUN_SCHEMA
    model: str
    num_ranks: PositiveInt
    layout: str
    ranks: tuple[RankReport, ...]
    notes: tuple[str, ...]
    """What the live bytes leave out, and what could not be checked."""

    @property
    def differences(self) -> tuple[str, ...]:
        """Of all ranks."""
        return tuple(
            f"rank {report.rank}: {line}" for report in self.ranks for line in report.differences
        )

    def as_text(self) -> str:
        """For people: one block of rows (planned, built) for each rank."""
        lines = [f"{self.model} on {self.num_ranks} ranks ({self.layout})"]
        for report in self.ranks:
            lines += ["", *_block(report)]
        lines += ["", *self.notes, self._verdict()]
        return "\n".join(lines)

    def _verdict(self) -> str:
        ranks = ", ".join(str(report.rank) for report in self.ranks)
        plural = "s" if len(self.ranks) > 1 else ""
        if not self.differences:
            return f"rank{plural} {ranks} of {self.num_ranks}: as planned"
        return f"rank{plural} {ranks} of {self.num_ranks}: {len(self.differences)} differences"


def _block(report: RankReport) -> Iterator[str]:
    rows = list(_rows(report.checks))
    heading = (f"rank {report.rank} (tp {report.tp}, dp {report.dp}, pp {report.pp})", "planned",
               "built")  # fmt: skip
    widths = [max(len(row[column]) for row in (heading, *rows)) for column in range(3)]
    for cells in (heading, *rows):
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=False))
        mark = "  <- differs" if cells[3:] == ("no",) else ""
        yield ("  ".join(padded) + mark).rstrip()
    yield from report.differences


def _rows(checks: Sequence[Check]) -> Iterator[tuple[str, ...]]:
    """Neighbours about the same thing, such as the number and the bytes of calls, in one row."""
    for what, group in groupby(checks, lambda check: check.what):
        same = list(group)
        planned = ", ".join(_in_words(check.planned, check.unit) for check in same)
        built = ", ".join(_in_words(check.built, check.unit) for check in same)
        yield what, planned, built, "" if all(check.agrees for check in same) else "no"


def _in_words(value: int | str, unit: Unit) -> str:
    if isinstance(value, str):
        return value
    if unit == "bytes":
        size = format_bytes(value)
        return f"{value:,} B" if size == f"{value} B" else f"{value:,} B ({size})"
    if unit == "calls":
        return f"{value:,} call{'' if value == 1 else 's'}"
    return f"{value:,}"


def ranks_in_words(ranks: Sequence[int]) -> str:
    """``0-7``; ``0-56 by 8 (8 ranks)``; else each of them."""
    if len(ranks) == 1:
        return str(ranks[0])
    step = ranks[1] - ranks[0]
    if list(ranks) != list(range(ranks[0], ranks[-1] + 1, step)) or step < 1:
        return " ".join(map(str, ranks))
    if len(ranks) == 2:
        return f"{ranks[0]} {ranks[1]}"
    by = "" if step == 1 else f" by {step}"
    return f"{ranks[0]}-{ranks[-1]}{by} ({len(ranks)} ranks)"
