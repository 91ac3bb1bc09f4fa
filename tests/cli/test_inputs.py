"""What the commands read of their arguments."""

from __future__ import annotations

import pytest

from shardwright.cli import _inputs
from shardwright.specs import InputError


def test_names_are_split_at_commas() -> None:
    assert _inputs.names(" cp, zero=3 ,") == ("cp", "zero=3")
    assert _inputs.names(None) == ()


def test_what_needs_torch_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(InputError, match=r"shardwright\[runtime\]"):
        _inputs.require_torch("run")
