"""A number without a unit in its name is found wherever it is public."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_units


@pytest.mark.parametrize(
    "name",
    [
        "memory_bytes", "latency_s", "bandwidth_bytes_per_s", "peak_flops_per_s", "power_watts",
        "usd_per_gpu_hour", "overlap_fraction", "num_layers", "busy_ranks", "hidden_size", "tp",
        "seconds_s", "micro_batch",
    ],
)  # fmt: skip
def test_names_that_say_their_unit(name: str) -> None:
    assert check_units.has_unit(name)


@pytest.mark.parametrize("name", ["memory", "latency", "time", "bandwidth_gb", "size_mb", "speed"])
def test_names_that_do_not(name: str) -> None:
    assert not check_units.has_unit(name)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("def f(memory: int) -> None: ...", ["memory"], id="parameter"),
        pytest.param("def f(*, delay: float | None) -> None: ...", ["delay"], id="keyword-only"),
        pytest.param("class A:\n    power: PositiveFloat\n", ["power"], id="field"),
        pytest.param(
            "class A:\n    def __init__(self, memory: int) -> None: ...", ["memory"], id="init"
        ),
        pytest.param(
            "class A:\n    @property\n    def peak(self) -> int: ...", ["peak"], id="property"
        ),
        pytest.param('class A:\n    item: int\n    """Bytes of one."""\n', [], id="docstring"),
        pytest.param(
            'class A:\n    """Bytes of all."""\n    a_b: int\n    c: int\n', [], id="record"
        ),
        pytest.param(
            'class A:\n    item: int\n    """One."""\n', ["item"], id="docstring-without-a-unit"
        ),
        pytest.param("LIMIT: int = 3\n", ["limit"], id="constant"),
        pytest.param("def _f(memory: int) -> None: ...", [], id="private-function"),
        pytest.param("class _A:\n    memory: int\n", [], id="private-class"),
        pytest.param("def f(name: str, on: bool) -> None: ...", [], id="not-numeric"),
        pytest.param("def f(memory_bytes: int) -> None: ...", [], id="has-unit"),
    ],
)
def test_what_is_public_and_numeric_is_checked(text: str, found: list[str]) -> None:
    breaches = check_units.breaches(Path("m.py"), text)
    assert [line.split(": ")[1].split(" ")[0] for line in breaches] == found


def test_a_tree_without_files_is_not_a_pass(tmp_path: Path) -> None:
    for folder in check_units.CHECKED:
        (tmp_path / folder).mkdir()
    assert check_units.main(tmp_path) == 1


def test_a_breach_names_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in check_units.CHECKED:
        (tmp_path / folder).mkdir()
    (tmp_path / "cost_models" / "m.py").write_text("def f(ok_s: float,\n      speed: float): ...\n")
    assert check_units.main(tmp_path) == 1
    assert "cost_models/m.py:2: speed does not say its unit" in capsys.readouterr().out
