"""Options as data."""

from __future__ import annotations

from shardwright.planner.exporters.megatron.arguments import Arguments


def test_reading() -> None:
    found = Arguments.of("--a 1", "--b", "--c x y", "--a 2")
    assert found.has("--b")
    assert not found.has("--d")
    assert found.number("--a") == 2, "the last one holds"
    assert found.values("--c") == ("x", "y")
    assert found.text("--b") is None
    assert found.degree("--d") == 1
    assert found.fraction("--d", 0.5) == 0.5
    assert found.present(("--d", "--c", "--b")) == ["--c", "--b"]
