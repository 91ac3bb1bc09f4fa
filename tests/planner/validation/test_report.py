from __future__ import annotations

import json

from shardwright.planner.validation.anchor import AnchorScore
from shardwright.planner.validation.cross import FoldScore
from shardwright.planner.validation.report import Report, as_json_dict, headline, tables
from shardwright.planner.validation.scores import Errors
from tests.planner.validation.test_scores import result, timed

RESULTS = [
    timed("a", 1.0, 1.1),
    timed("b", 2.0, 1.5),
    timed("c", 1.0, None),
    result(
        "d", measured_step_time_s=None, measured_peak_memory_bytes=90.0, problem=None,
        predicted_peak_memory_bytes=99.0, measured_oom=False,
    ),
    result("e", measured_oom=True, predicted_oom=True, problem=None),
]  # fmt: skip


class TestJson:
    def test_rows_and_problems_have_exactly_their_keys(self) -> None:
        found = as_json_dict(Report.of(RESULTS))
        assert list(found) == ["rows", "summary", "problems"]
        assert [row["id"] for row in found["rows"]] == ["a", "b", "c", "d", "e"]
        assert found["rows"][0] == {
            "id": "a", "measured_step_time_s": 1.0, "predicted_step_time_s": 1.1,
            "band_s": [1.0, 3.0], "measured_peak_memory_bytes": None,
            "predicted_peak_memory_bytes": None, "measured_oom": False, "predicted_oom": False,
            "skipped": None,
        }  # fmt: skip
        assert found["rows"][2]["skipped"] == "why"
        (problem,) = found["problems"]
        assert problem == {
            "problem": "p", "num_layouts": 3, "best_id": "a", "picked_id": "a", "regret": 0.0,
            "pairwise_accuracy": 1.0,
        }  # fmt: skip

    def test_the_summary_can_be_written(self) -> None:
        summary = as_json_dict(Report.of(RESULTS))["summary"]
        assert json.loads(json.dumps(summary, allow_nan=False)) == summary
        assert summary["step_time"]["full_configuration"]["skipped_fraction"] == 1 / 4
        assert summary["order"] == {
            "pairs": 1, "right": 1, "repeats": 0, "pairwise_accuracy": 1.0,
        }  # fmt: skip
        assert summary["regret"] == {"problems": 1, "mean": 0.0, "worst": 0.0}
        assert summary["memory"]["device"]["count"] == 1
        assert summary["oom"]["oom_refused"] == 1
        assert summary["groups"][0]["accelerator"] == "x"
        assert "anchor" not in summary
        assert "hold_out" not in summary

    def test_what_else_was_asked_for(self) -> None:
        anchors = (AnchorScore("s", 3, 3, 0.1, 0.1, 0.2, 0.0, 1.0),)
        folds = (FoldScore("s", 4, Errors.of([1.1])),)
        report = Report.of(RESULTS, anchors=anchors, num_anchors=1, folds=folds, hold_out="stack")
        summary = as_json_dict(report)["summary"]
        assert summary["anchor"]["num_anchors"] == 1
        assert summary["anchor"]["stacks"][0]["stack"] == "s"
        assert summary["anchor"]["all"]["num_rows"] == 3
        assert summary["hold_out"]["by"] == "stack"
        titles = [table.title for table in tables(report)]
        assert any("calibration on 1 rows" in title for title in titles)
        assert any("left out" in title for title in titles)


class TestText:
    def test_headline(self) -> None:
        text = "\n".join(headline(Report.of(RESULTS)))
        assert "rows      5, of which 1 skipped" in text
        assert "4 with a full configuration, of which 1 skipped (25.0 %)" in text
        assert "MAPE 17.5 %" in text

    def test_tables_are_rectangular_and_never_empty(self) -> None:
        for table in tables(Report.of(RESULTS)):
            assert table.rows
            assert all(len(row) == len(table.headings) for row in table.rows)

    def test_a_file_without_anything_has_words_all_the_same(self) -> None:
        report = Report.of([])
        assert "- of 0 clear pairs" in "\n".join(headline(report))
        assert list(tables(report)) == []

    def test_long_names_and_reasons_stay_in_their_lines(self) -> None:
        rows = [timed(i, 1.0 + n, 1.0, problem="p" * 300) for n, i in enumerate("ab")]
        rows += [timed(f"s{n}", 1.0, None, problem=None) for n in range(2)]
        long = [r if r.skipped is None else result(r.id, skipped="w" * 999) for r in rows]
        for table in tables(Report.of(long)):
            assert all(len(cell) < 120 for row in table.rows for cell in row)
