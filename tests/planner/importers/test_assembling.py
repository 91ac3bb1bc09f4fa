"""Layouts from what a file says."""

from __future__ import annotations

from shardwright.planner.importers.assembling import layout_from_choices
from shardwright.planner.layout_text import normalise_choices
from shardwright.specs import Layout, Recompute, TrainingSpec
from shardwright.specs.sources import resolve_model

MODEL = resolve_model("llama-3.1-8b")
TRAINING = TrainingSpec(global_batch=32, seq_len=2048)


def test_dp_is_what_remains() -> None:
    choices = normalise_choices({"tp": 2, "pp": 2, "stages": (10, 32), "recompute": "full/none",
                                 "offload": "optimizer", "zero": 1})  # fmt: skip
    found = layout_from_choices(MODEL, TRAINING, choices, 16)
    assert found == Layout.of(
        MODEL, TRAINING, tp=2, pp=2, dp=4, boundaries=(10,), zero=1, offload=("optimizer",),
        recompute=(Recompute(policy="full"), Recompute()),
    )  # fmt: skip


def test_what_is_not_known_or_does_not_divide_gives_none() -> None:
    assert layout_from_choices(None, TRAINING, {}, 8) is None
    assert layout_from_choices(MODEL, None, {}, 8) is None
    assert layout_from_choices(MODEL, TRAINING, {}, None) is None
    assert layout_from_choices(MODEL, TRAINING, {"tp": 3}, 8) is None
