"""Names that all readings share."""

from __future__ import annotations

from shardwright.planner.importers.stated import stated_of
from shardwright.specs.sources import resolve_model


def test_sizes_and_degrees() -> None:
    found = stated_of(
        "it", choices={"tp": 2, "pp": 4, "stages": (3, 8, 16, 27)},
        model=resolve_model("deepseek-v2-lite"), training=None, layout=None, world=32,
        consistent=True,
    )  # fmt: skip
    assert (found["tp"], found["cp"], found["dp"]) == (2, 1, 4)
    assert found["stages"] == [3, 5, 8, 11]
    assert found["layers"] == 27
    assert found["mla"] is True
    assert found["experts"] == 64
    assert found["global_batch"] is None


def test_what_is_open_is_none() -> None:
    found = stated_of("it", choices={}, model=None, training=None, layout=None, world=None,
                      consistent=True)  # fmt: skip
    assert found["dp"] is None
    assert found["layers"] is None
