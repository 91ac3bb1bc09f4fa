"""Records round-trip to the last bit, and a resumed run drops what it does again."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from shardwright.runtime.metrics import MetricsFile, Reporter, StepRecord, read_records
from shardwright.specs import RunError


def _record(step: int) -> StepRecord:
    return StepRecord(step, 1 / 3 + step, 0.1 + step, 1e-3 / 3, 0.2, 640.0)


def _write(path: Path, first: int, last: int) -> None:
    metrics = MetricsFile(path, first_step=first)
    for step in range(first, last + 1):
        metrics.append(_record(step))
    metrics.close()


def test_records_come_back_to_the_last_bit(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    _write(path, 1, 3)
    assert read_records(path) == [_record(1), _record(2), _record(3)]


def test_resumed_run_drops_the_steps_it_does_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    _write(path, 1, 5)
    _write(path, 4, 4)
    assert [record.step for record in read_records(path)] == [1, 2, 3, 4]


def test_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    _write(path, 1, 2)
    path.write_text(path.read_text(encoding="utf-8")[:-5], encoding="utf-8")
    assert [record.step for record in read_records(path)] == [1]
    assert read_records(tmp_path / "absent") == []


def test_full_disk_is_one_line(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl", first_step=1)
    metrics.close()
    with Path("/dev/full").open("ab", buffering=0) as full:
        metrics._file = full
        with pytest.raises(RunError, match=r"metrics .*No space left on device") as error:
            metrics.append(_record(1))
    assert "\n" not in str(error.value)


def test_lines_come_every_few_steps_from_one_rank(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for speaks in (True, False):
        with Reporter(first_step=1, last_step=7, log_every=3, speaks=speaks) as reporter:
            for step in range(1, 8):
                reporter.done(_record(step))
    spoken = [message.split(":")[0] for message in caplog.messages]
    assert spoken == ["step 1", "step 3", "step 6", "step 7"]


def test_lines_stand_above_the_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Reporter(first_step=1, last_step=2, log_every=1, speaks=True) as reporter:
        reporter.done(_record(1))
    output, errors = capsys.readouterr()
    assert output == ""
    assert "step 1: loss 1.3333" in errors
    assert "1/2" in errors
