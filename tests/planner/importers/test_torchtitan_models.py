"""Models of torchtitan's configurations; files of their sizes are read and never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.planner.exporters.torchtitan.facts import FLAVORS
from shardwright.planner.importers.torchtitan_models import (
    llama3_ffn_size,
    model_of_flavor,
    model_of_module,
    model_of_sizes,
)


@pytest.mark.parametrize(("name", "flavor"), FLAVORS)
def test_flavors(name: str, flavor: str) -> None:
    model = model_of_flavor(name, flavor)
    assert model is not None
    assert not any(block.kind == "mtp" for block in model.decoder.blocks)


def test_kernels_of_a_flavor_and_the_small_one() -> None:
    assert model_of_flavor("llama3", "8B_flex") == model_of_flavor("llama3", "8B")
    small = model_of_flavor("llama3", "debugmodel")
    assert small is not None
    assert small.decoder.num_layers == 6
    assert model_of_flavor("flux", "dev") is None


@pytest.mark.parametrize(
    ("hidden", "multiple", "factor", "size"),
    [(4096, 1024, 1.3, 14336), (8192, 4096, 1.3, 28672), (16384, 4096, 1.2, 53248)],
)
def test_llama3_widths(hidden: int, multiple: int, factor: float, size: int) -> None:
    """Those of Llama 3 8B, 70B and 405B."""
    assert llama3_ffn_size(hidden, multiple, factor) == size


def test_sizes_of_the_known_models_give_them() -> None:
    sizes = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "multiple_of": 1024,
             "ffn_dim_multiplier": 1.3, "rope_theta": 500000}  # fmt: skip
    found, known = model_of_sizes("llama3", sizes), model_of_flavor("llama3", "8B")
    assert found is not None
    assert known is not None
    assert found.towers == known.towers
    assert model_of_sizes("llama3", {"dim": "wide"}) is None


def test_a_module_is_read_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    bad = tmp_path / "touched"
    path.write_text(
        f"open({str(bad)!r}, 'w')\nA = Qwen3ModelArgs(dim=512, n_layers=4, n_heads=8)\n"
    )
    model, reason = model_of_module(path)
    assert reason is None
    assert model is not None
    assert model.decoder.hidden_size == 512
    assert not bad.exists()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("x = (", "cannot be read"),
        ("A = TransformerModelArgs(dim=size())\n", "plain numbers"),
        ("A = TransformerModelArgs(**sizes)\n", "plain numbers"),
        ("print(1)\n", "plain numbers"),
        ("(" * 5000, "cannot be read"),
    ],
)
def test_modules_without_plain_sizes(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(text)
    model, reason = model_of_module(path)
    assert model is None
    assert reason is not None
    assert word in reason


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    assert model_of_module(tmp_path / "none.py")[0] is None
