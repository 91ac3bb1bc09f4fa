"""The closing line counts every test of both phases, and nothing that fails stays hidden."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tools import run_tests
from tools.run_tests import Totals

REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="1" failures="2" skipped="3" tests="20" /></testsuites>
"""


def test_totals_of_a_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert run_tests.read_totals(report) == Totals(passed=14, failed=3, skipped=3)


def test_the_closing_line() -> None:
    assert str(Totals(12, 0)) == "12 passed, 0 failed"
    assert str(Totals(12, 1, 4)) == "12 passed, 1 failed, 4 skipped"


def run_main(monkeypatch: pytest.MonkeyPatch, *phases: tuple[int, Totals]) -> int:
    results = iter(phases)

    def run_phase(options: Sequence[str], report: Path) -> tuple[int, Totals]:
        return next(results)

    monkeypatch.setattr(run_tests, "run_phase", run_phase)
    return run_tests.main()


@pytest.mark.parametrize(
    ("phases", "code", "line"),
    [
        pytest.param(
            [(0, Totals(5, 0)), (0, Totals(2, 0, 1))], 0, "7 passed, 0 failed, 1 skipped", id="ok"
        ),
        pytest.param(
            [(1, Totals(5, 1)), (0, Totals(2, 0))], 1, "7 passed, 1 failed", id="first-fails"
        ),
        pytest.param(
            [(0, Totals(5, 0)), (2, Totals(2, 0))], 1, "7 passed, 0 failed", id="usage-error"
        ),
        pytest.param([(0, Totals()), (0, Totals())], 1, "0 passed, 0 failed", id="nothing-ran"),
    ],
)
def test_both_phases_count(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    phases: list[tuple[int, Totals]],
    code: int,
    line: str,
) -> None:
    assert run_main(monkeypatch, *phases) == code
    assert capsys.readouterr().out.splitlines()[-1] == line


@pytest.mark.parametrize(
    ("text", "code", "totals"),
    [
        pytest.param("def test_a(): pass\n", 0, Totals(1, 0), id="passes"),
        pytest.param("def test_a(): assert 0\n", 1, Totals(0, 1), id="fails"),
        pytest.param("import nothing_of_that_name\n", 2, Totals(0, 1), id="cannot-be-imported"),
        pytest.param("x = 1\n", 0, Totals(), id="no-tests"),
    ],
)
def test_a_phase_is_a_real_run_of_pytest(
    tmp_path: Path, text: str, code: int, totals: Totals
) -> None:
    (tmp_path / "test_sample.py").write_text(text)
    options = ["-p", "no:cacheprovider", "-q", str(tmp_path)]
    assert run_tests.run_phase(options, tmp_path / "report.xml") == (code, totals)
