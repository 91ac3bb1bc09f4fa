"""Each check finds what it is for: on this machine all is well, and each fault is seen."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardwright.cli import _checks

QUICK = {name: check for name, check in _checks.CHECKS.items() if name != "gloo"}


@pytest.mark.parametrize("name", QUICK)
def test_a_check_reports_under_its_own_name_and_says_what_to_do(name: str) -> None:
    found = QUICK[name]()
    assert found.name == name
    assert found.detail
    assert (found.fix is None) == (found.status == "ok")


def raising(error: Exception) -> Any:
    def function(*args: object, **kwargs: object) -> None:
        raise error

    return function


def test_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    assert _checks.python().status == "fail"


def test_links_that_were_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "runtime").write_text("../runtime")
    monkeypatch.setattr("shardwright.__file__", str(tmp_path / "__init__.py"))
    found = _checks.packaging()
    assert found.status == "fail"
    assert "runtime" in found.detail


def test_torch_missing_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        importlib.metadata, "version", raising(importlib.metadata.PackageNotFoundError("torch"))
    )
    found = _checks.torch_installed()
    assert found.status == "warn"
    assert "shardwright[runtime]" in str(found.fix)


@pytest.mark.parametrize(
    ("version", "status"), [("2.10.1", "fail"), ("2.11.0+cpu", "ok"), ("3.0.0a1", "ok")]
)
def test_the_version_of_torch(
    monkeypatch: pytest.MonkeyPatch, version: str, status: _checks.Status
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert _checks.torch_installed().status == status


def test_a_device_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWRIGHT_DEVICE", "abacus")
    found = _checks.torch_installed()
    assert found.status == "fail"
    assert "abacus" in found.detail


def test_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "shardwright.hardware_profiles.discover.host_memory_bytes", lambda: (8 * 2**30, 2**30)
    )
    assert _checks.memory().status == "warn"


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30))
    assert _checks.disk().status == "warn"


def test_a_clock_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert _checks.clock().status == "warn"


def test_a_coarse_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "get_clock_info", lambda name: SimpleNamespace(resolution=0.015))
    assert _checks.clock().status == "warn"


def test_a_host_name_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", raising(socket.gaierror(-2, "not known")))
    assert _checks.host_name().status == "warn"


def test_a_rendezvous_port_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken:
        monkeypatch.setattr(_checks, "RENDEZVOUS_PORT", taken.getsockname()[1])
        found = _checks.ports()
    assert found.status == "warn"
    assert "in use" in found.detail


def test_no_sockets_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_server", raising(PermissionError(1, "not permitted")))
    assert _checks.ports().status == "fail"


def test_collectives_are_not_tried_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert _checks.collectives().status == "warn"


@pytest.mark.multiprocess
def test_two_ranks_all_reduce_on_this_machine() -> None:
    found = _checks.collectives()
    assert found.status == "ok", found.detail


def test_a_rank_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert _checks._all_reduce_by_two_ranks(tmp_path / "store") == "exit code 1"


@pytest.mark.multiprocess
def test_silent_ranks_are_given_up_and_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_checks, "COLLECTIVE_TIMEOUT_S", 0.2)
    problem = _checks._all_reduce_by_two_ranks(tmp_path / "store")
    assert problem == "no answer within 0.2 s"
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
