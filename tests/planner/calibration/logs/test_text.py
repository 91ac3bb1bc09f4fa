"""Lines as people keep them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.planner.calibration.logs.text import (
    fields_of,
    leading_number,
    lines_of,
    lines_of_file,
    number_of,
    printer_of,
)


def test_lines_are_plain() -> None:
    text = "\x1b[36mstep: 1\x1b[0m\rstep: 2\r\n\n[32mloss\xa0x\x00"
    assert list(lines_of(text)) == ["step: 1", "step: 2", "loss x"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_of_shells(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "x.log"
    path.write_text("step ▏ 1\nend\n", encoding=encoding)
    assert list(lines_of_file(path)) == ["step ▏ 1", "end"]


def test_a_few_odd_bytes_do_not_spoil_a_log(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"a line of text that is long enough \xff\n" * 3)
    assert len(list(lines_of_file(path))) == 3


@pytest.mark.parametrize(
    ("line", "printer"),
    [("[rank3]: x", "3"), ("[default7]:x", "7"), ("12: x", "12"), ("[Rank 0] x", "0"),
     ("[3]: x", "3"), ("iteration 3: x", None), ("2025-03-04 05:44:01 x", None)],
)  # fmt: skip
def test_who_printed_a_line(line: str, printer: str | None) -> None:
    assert printer_of(line) == printer


def test_numbers_and_fields() -> None:
    assert number_of("6,785") == 6785.0
    assert number_of("six") is None
    assert leading_number(" 989.44ms") == 989.44
    assert leading_number(None) is None
    assert fields_of("a (ms): 1.5 | B b: x|c") == {"a (ms)": "1.5", "b b": "x"}
