from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import fidelity
from benchmarks.fidelity_report import Section
from benchmarks.fidelity_scores import PUBLISHED, SWEEPS
from tests.benchmarks.test_fidelity_scores import sweep
from tests.planner.validation import rows


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both files with a few rows, and nothing written but below ``tmp_path``."""
    monkeypatch.setattr(fidelity, "TARGET", tmp_path / "fidelity.md")
    monkeypatch.setattr(fidelity, "PAGE", tmp_path / "docs" / "fidelity.md")
    monkeypatch.setattr(fidelity, "PLOTS", tmp_path / "docs" / "fidelity")
    published = [rows.value(id=name, stack=name[0]) for name in ("a1", "a2", "b1")]
    swept = [rows.value(id=f"s{n}", **sweep(f"p{n}", gpus)) for n, gpus in enumerate((8, 8, 64))]
    (tmp_path / PUBLISHED).write_text(json.dumps(published), encoding="utf-8")
    (tmp_path / SWEEPS).write_text(json.dumps(swept), encoding="utf-8")
    return tmp_path


def test_tables_page_and_plots_are_written(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fidelity.main(["--data", str(data), "--write"]) == 0
    shown = capsys.readouterr().out
    assert (data / "fidelity.md").read_text(encoding="utf-8") == shown
    page = (data / "docs" / "fidelity.md").read_text(encoding="utf-8")
    plots = sorted((data / "docs" / "fidelity").iterdir())
    assert [path.name for path in plots] == [
        "sweeps-large.svg", "sweeps-small.svg", "unseen-model.svg", "unseen-stack.svg",
    ]  # fmt: skip
    for path in plots:
        assert f"(fidelity/{path.name})" in page
        assert path.read_text(encoding="utf-8").startswith("<svg")
    assert "furthest off" not in page
    assert "furthest off" in shown


def test_nothing_is_written_unless_asked(data: Path) -> None:
    assert fidelity.main(["--data", str(data), "--exact"]) == 0
    assert not (data / "fidelity.md").exists()
    assert not (data / "docs").exists()


def test_without_data_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fidelity.main(["--data", str(tmp_path), "--write"]) == 0
    assert "is not there" in capsys.readouterr().err


def test_plots_stand_in_their_section() -> None:
    parts = [Section("sweeps", "Sweeps", "first"), Section("stacks", "Stacks", "second")]
    page = fidelity.page(parts, {"x": ("sweeps", "<svg/>")})
    assert page.index("first") < page.index("x.svg") < page.index("second")
