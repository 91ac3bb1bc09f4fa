"""One choice of everything but the boundaries, for our own runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwright.planner.choices import Choices
from shardwright.planner.layout_text import NAMES


def test_every_name_has_a_value() -> None:
    plain = Choices(1, 2, 2, 1, 4, 0, False, "none", "1f1b")
    values = {name: plain.value(name) for name in NAMES if name != "stages"}
    assert (values["pp"], values["ep"], values["offload"]) == (2, 1, "none")
    assert (values["zero_shard_degree"], replace(plain, zero=1).value("zero_shard_degree")) == (
        1,
        2,
    )


def test_plainer_choices_have_smaller_keys() -> None:
    plain = Choices(1, 2, 2, 1, 4, 0, False, "none", "1f1b")
    changes: list[dict[str, Any]] = [
        {"zero": 1}, {"recompute": "full"}, {"schedule": "gpipe"}, {"micro_batch": 2}
    ]  # fmt: skip
    for change in changes:
        assert plain.key < replace(plain, **change).key
