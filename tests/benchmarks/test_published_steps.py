"""Percentiles, bands and coverage on numbers that can be checked by hand; the catalogue's bands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.published_steps import (
    Comparison,
    coverage,
    left_out,
    main,
    pooled_band,
    quantiles,
    source_band,
    widest_band,
    within_problems,
)
from tests.benchmarks.test_published_rows import ROW

RATIOS = {"a": [1.0, 1.1, 1.2, 1.3, 1.4], "b": [2.0], "c": [1.0, 1.2]}


def test_quantiles_stand_at_the_middle_of_their_weight() -> None:
    # Middles of weight: 0.125, 0.5, 0.875.
    found = quantiles([3.0, 1.0, 2.0], [1.0, 1.0, 2.0], (0.0, 0.125, 0.3125, 0.5, 0.875, 1.0))
    assert found == pytest.approx([1.0, 1.0, 1.5, 2.0, 3.0, 3.0])


def test_repeating_a_sources_rows_does_not_move_the_pooled_band() -> None:
    repeated = RATIOS | {"b": RATIOS["b"] * 50}
    assert pooled_band(repeated) == pytest.approx(pooled_band(RATIOS))
    all_rows = source_band([ratio for rows in repeated.values() for ratio in rows])
    assert all_rows != pytest.approx(pooled_band(RATIOS))


def test_the_widest_band_spans_every_sources_own() -> None:
    low, high = widest_band(RATIOS)
    assert (low, high) == (min(1.0, source_band(RATIOS["a"])[0]), 2.0)


def test_coverage_counts_rows_inside() -> None:
    assert coverage([0.5, 1.0, 1.5, 2.0], (1.0, 1.5)) == 0.5


def test_a_source_does_not_vouch_for_itself() -> None:
    found = {source: (band, share) for source, band, share in left_out(RATIOS, widest_band)}
    (low, high), share = found["b"]
    assert (low, share) == (1.0, 0.0)
    assert high == pytest.approx(1.4)
    assert found["a"] == ((1.0, 2.0), 1.0)


def test_within_problems_leaves_what_layouts_differ_by() -> None:
    def one(problem: str | None, measured_s: float) -> Comparison:
        return Comparison("row", "source", problem, "device", measured_s, predicted_s=1.0)

    rows = [one("p", 2.0), one("p", 2.2), one("p", 1.8), one("q", 9.0), one(None, 3.0)]
    assert within_problems(rows) == pytest.approx([1.0, 1.1, 0.9])


def test_the_report_names_what_was_compared_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs.json"
    other = ROW | {"id": "another", "stack": "b-stack"}
    runs.write_text(json.dumps([ROW, other, ROW | {"status": "oom"}]))
    assert main(["--runs", str(runs), "--rows"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("b-stack  another") for line in lines)
    assert "skipped of a-stack: 1 out of memory" in lines
    assert sum(line.startswith(("pooled band", "widest band")) for line in lines) == 2


def test_without_the_file_nothing_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--runs", str(tmp_path / "absent.json")]) == 0
    assert capsys.readouterr().out.startswith("skipped: there is no file")
