"""Run the tests in two phases and end with one line that counts them all.

Tests that start ranks of their own (marked ``multiprocess``) or measure time (``alone``) run one at
a time, after the others, which share two workers: on two cores, ranks of several tests at once
would wait for one another until their time-outs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tools.sources import ROOT

PHASES = (
    ("-m", "not multiprocess and not alone", "-n", "2"),
    ("-m", "multiprocess or alone", "-n", "0"),
)
NO_TESTS_COLLECTED = 5


@dataclass(frozen=True, slots=True)
class Totals:
    """How many tests ended in which way; errors in fixtures count as failures."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped
        )

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def read_totals(report: Path) -> Totals:
    """The totals of one JUnit report as pytest writes it."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None, report
    tests, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return Totals(passed=tests - failed - skipped, failed=failed, skipped=skipped)


def run_phase(options: Sequence[str], report: Path) -> tuple[int, Totals]:
    """Run pytest with these options; its exit code (0 where it found no test) and its totals."""
    command = [sys.executable, "-m", "pytest", f"--junitxml={report}", *options]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    totals = read_totals(report) if report.exists() else Totals(failed=1)
    return (0 if code == NO_TESTS_COLLECTED else code), totals


def main(extra: Sequence[str] = ()) -> int:
    """Run both phases whatever happens in the first; 1 where anything failed or nothing ran."""
    codes, totals = [], Totals()
    with tempfile.TemporaryDirectory() as folder:
        for number, options in enumerate(PHASES):
            code, phase = run_phase([*options, *extra], Path(folder) / f"{number}.xml")
            codes.append(code)
            totals += phase
    sys.stdout.write(f"\n{totals}\n")
    return 1 if any(codes) or totals.failed or not totals.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
