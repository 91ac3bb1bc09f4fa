"""What is kept is found again, for the same question only; what is damaged is not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.what_if import cache as caching
from shardwright.planner.what_if.cache import Cache, Keys, code_hash, default_folder
from shardwright.planner.what_if.points import Point
from shardwright.specs.sources import resolve_model
from tests.planner.what_if.small import QUICK, infeasible, planned

KEY = "ab" + "0" * 62


def test_outcomes_are_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.load(KEY) is None
    cache.save(KEY, planned(2.0))
    assert Cache(tmp_path).load(KEY) == planned(2.0)
    cache.save(KEY, infeasible())
    assert cache.load(KEY) == infeasible()
    assert [path.name for path in (tmp_path / "ab").iterdir()] == ["0" * 62 + ".json"]


@pytest.mark.parametrize("damage", [b"", b"x", b"\xff\xfe", b"0\n{}", None])
def test_a_damaged_entry_is_not_there(tmp_path: Path, damage: bytes | None) -> None:
    cache = Cache(tmp_path)
    cache.save(KEY, planned())
    path = next(tmp_path.rglob("*.json"))
    text = path.read_bytes()
    path.write_bytes(text.replace(b"1.0", b"1.5") if damage is None else damage)
    assert cache.load(KEY) is None
    path.write_bytes(text[: len(text) // 2])
    assert cache.load(KEY) is None
    path.write_bytes(text)
    assert cache.load(KEY) == planned()


def test_what_more_time_would_change_is_not_kept(tmp_path: Path) -> None:
    Cache(tmp_path).save(KEY, planned(optimal=False))
    assert Cache(tmp_path).load(KEY) is None


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    Cache(blocked).save(KEY, planned())
    assert Cache(blocked).load(KEY) is None
    Cache(None).save(KEY, planned())
    assert Cache(None).load(KEY) is None


def test_the_same_question_has_the_same_key_and_no_other_has() -> None:
    points = [
        QUICK,
        replace(QUICK, model="gpt2-xl"),
        replace(QUICK, cluster="dgx-a100-80gb"),
        replace(QUICK, settings={**QUICK.settings, "gpus": "4"}),
        replace(QUICK, fix="tp=1"),
        replace(QUICK, forbid=("cp",)),
        replace(QUICK, model=resolve_model("gpt2")),
        replace(QUICK, cluster=resolve_cluster("dgx-h100", gpus=2)),
    ]
    keys = [Keys().of(point) for point in points]
    assert None not in keys
    assert len(set(keys)) == len(points)
    assert [Keys().of(point) for point in points] == keys
    turned = replace(QUICK, settings=dict(reversed(list(QUICK.settings.items()))), time_limit_s=3)
    assert Keys().of(turned) == keys[0]


def test_a_file_counts_by_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    point = Point(str(file), "dgx-h100")
    before = Keys().of(point)
    folder = Keys().of(replace(point, model=str(tmp_path)))
    assert before != folder
    file.write_text('{"a": 1}')
    assert Keys().of(point) != before
    assert Keys().of(replace(point, model=str(tmp_path))) != folder


@pytest.mark.parametrize("point", [Point("my.models:big", "dgx-h100"), Point("gpt2", "local")])
def test_what_only_this_machine_knows_has_no_key(point: Point) -> None:
    assert Keys().of(point) is None


def test_an_inline_cluster_is_text() -> None:
    assert Keys().of(Point("gpt2", "h100-sxm5-80gb:8x2,inter=400GB/s")) is not None


def test_other_code_has_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Keys().of(QUICK)
    assert len(code_hash()) == 64
    monkeypatch.setattr(caching, "code_hash", lambda: "changed")
    assert Keys().of(QUICK) != before


def test_the_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE_DIR", str(tmp_path))
    assert default_folder() == tmp_path / "what-if"
    monkeypatch.delenv("SHARDWRIGHT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "shardwright" / "what-if"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "shardwright" / "what-if"
