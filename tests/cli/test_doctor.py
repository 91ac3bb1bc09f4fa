"""The doctor says what is wrong, what to do, and by its exit code whether anything is."""

from __future__ import annotations

import json

import pytest

from shardwright.cli import execute
from shardwright.cli._checks import Check

FINE = Check("disk", "ok", "80 GiB free")
NARROW = Check("memory", "warn", "2 GiB available", "train smaller models")
BROKEN = Check("gloo", "fail", "no answer within 60 s", "check the host name")


def with_checks(monkeypatch: pytest.MonkeyPatch, *found: Check) -> None:
    checks = {check.name: lambda check=check: check for check in found}
    monkeypatch.setattr("shardwright.cli._checks.CHECKS", checks)


@pytest.mark.parametrize(
    ("found", "code"), [((FINE,), 0), ((FINE, NARROW), 0), ((FINE, NARROW, BROKEN), 2)]
)
def test_only_failures_fail(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    found: tuple[Check, ...],
    code: int,
) -> None:
    with_checks(monkeypatch, *found)
    assert execute(["doctor"]) == code
    out = capsys.readouterr().out
    for check in found:
        assert check.detail in out
        assert check.fix is None or f"to fix: {check.fix}" in out


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with_checks(monkeypatch, FINE, BROKEN)
    assert execute(["doctor", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["checks"][1] == {
        "name": "gloo", "status": "fail", "detail": "no answer within 60 s",
        "fix": "check the host name",
    }  # fmt: skip
