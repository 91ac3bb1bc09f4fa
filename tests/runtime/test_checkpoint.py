"""Checkpoints are atomic, complete and checked, and survive everything that can go wrong."""

from __future__ import annotations

import errno
import io
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from shardwright.runtime import checkpoint
from shardwright.runtime.checkpoint import CheckpointStore, RunFacts
from shardwright.runtime.pieces import Piece
from shardwright.specs import InputError, Plan, RunError
from tests.runtime.plans import plan_of

PLAN = plan_of()
FACTS = RunFacts.of(PLAN, "data")
NUM_ELEMENTS = PLAN.model.num_parameters


def _pieces(tensor: torch.Tensor, edges: list[int]) -> list[Piece]:
    """One flat tensor of the model's size, cut at the given positions."""
    bounds = [0, *edges, tensor.numel()]
    return [
        Piece("weight/all", tuple(tensor.shape), (start,), tensor[start:stop])
        for start, stop in itertools.pairwise(bounds)
    ]


def _values(step: int) -> torch.Tensor:
    return torch.arange(NUM_ELEMENTS, dtype=torch.float32) + step


def _save(store: CheckpointStore, step: int, plan: Plan = PLAN) -> Path:
    return store.save(step, _pieces(_values(step), [1000]), FACTS, plan)


def _load(store: CheckpointStore, step: int) -> torch.Tensor:
    tensor = torch.full((NUM_ELEMENTS,), -1.0)
    store.load(step, _pieces(tensor, [10, 5000]))
    return tensor


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run", keep=2)


def test_saved_values_come_back_under_another_cut(store: CheckpointStore) -> None:
    path = _save(store, 60)
    assert path.name == "step-000060"
    assert torch.equal(_load(store, 60), _values(60))
    manifest = store.read_manifest()
    assert (manifest.step, manifest.facts) == (60, FACTS)
    assert manifest.plan_hash == PLAN.content_hash()
    assert Plan.load(path / "plan.json") == PLAN


def test_only_the_newest_stay(store: CheckpointStore) -> None:
    for step in (10, 20, 30):
        _save(store, step)
    assert store.steps() == [20, 30]
    assert store.latest_step() == 30
    assert sorted(path.name for path in store.folder.iterdir()) == [
        "latest", "step-000020", "step-000030",
    ]  # fmt: skip


def test_run_can_be_set_back_and_go_on(store: CheckpointStore) -> None:
    for step in (10, 20):
        _save(store, step)
    (store.folder / "latest").write_text("step-000010\n", encoding="utf-8")
    assert store.latest_step() == 10
    _save(store, 20)
    assert (store.latest_step(), store.steps()) == (20, [10, 20])


def test_run_that_died_before_the_pointer_moved_has_its_checkpoint(store: CheckpointStore) -> None:
    _save(store, 10)
    (store.folder / "latest").unlink()
    assert store.latest_step() == 10


def test_used_folder_is_refused(store: CheckpointStore) -> None:
    store.refuse_if_used()
    _save(store, 10)
    with pytest.raises(InputError, match="holds a run's checkpoints up to step 10") as error:
        store.refuse_if_used()
    assert "--resume" in str(error.value)


def test_nothing_to_resume_is_refused(store: CheckpointStore) -> None:
    with pytest.raises(InputError, match="there is no checkpoint in"):
        store.read_manifest()


def test_other_run_is_refused() -> None:
    other = RunFacts.of(plan_of(), "other data").model_copy(update={"seed": 9})
    with pytest.raises(InputError, match="seed is 0, there 9; data_fingerprint is data, there"):
        FACTS.check_same(other, Path("folder"))


def test_names_and_sources_of_models_do_not_matter() -> None:
    renamed = PLAN.model.model_copy(update={"name": "copy", "source": "elsewhere"})
    assert RunFacts.of(PLAN.model_copy(update={"model": renamed}), "data") == FACTS


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "plan.json", "manifest.json"])
@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink], ids=["cut", "altered", "missing"])
def test_damage_is_noticed_before_anything_is_loaded(
    store: CheckpointStore, name: str, damage: Callable[[Path], object]
) -> None:
    _save(store, 10)
    damage(_save(store, 20) / name)
    tensor = torch.zeros(NUM_ELEMENTS)
    with pytest.raises(RunError, match=r"cannot load the checkpoint .*step-000020") as error:
        store.load(20, _pieces(tensor, []))
    assert name in str(error.value)
    assert "go back to step 10" in str(error.value)
    assert not tensor.any()
    assert torch.equal(_load(store, 10), _values(10))


def test_full_disk_leaves_the_previous_checkpoint(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(store, 10)

    def full(self: FileSystemWriter, *args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileSystemWriter, "write_data", full)
    with pytest.raises(RunError, match="cannot save the checkpoint of step 20") as error:
        _save(store, 20)
    message = str(error.value)
    assert "No space left on device" in message
    assert "the one of step 10 is untouched" in message
    assert "\n" not in message
    assert [path.name for path in sorted(store.folder.iterdir())] == ["latest", "step-000010"]
    assert torch.equal(_load(store, 10), _values(10))


def test_failure_at_any_later_write_leaves_the_previous_checkpoint(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(store, 10)
    write = checkpoint._write_synced

    def full_at_manifest(path: Path, text: str) -> None:
        if path.name == "manifest.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, text)

    monkeypatch.setattr(checkpoint, "_write_synced", full_at_manifest)
    with pytest.raises(RunError, match="No space left on device"):
        _save(store, 20)
    assert (store.steps(), store.latest_step()) == ([10], 10)


def test_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    store = CheckpointStore(tmp_path / "file" / "run")
    with pytest.raises(RunError, match="Not a directory"):
        _save(store, 10)


def test_pieces_that_are_not_the_whole_model_are_refused(store: CheckpointStore) -> None:
    half = _pieces(_values(1), [1000])[:1]
    with pytest.raises(RunError, match=f"hold 1000 of the {NUM_ELEMENTS} elements of weight/all"):
        store.save(1, half, FACTS, PLAN)
    assert store.latest_step() is None


def test_tensors_that_cannot_be_unpickled_are_never_opened(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``.metadata`` is a pickle: an altered one must not be executed."""
    path = _save(store, 10) / ".metadata"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")

    def refuse(file: io.BytesIO) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr("pickle.load", refuse)
    with pytest.raises(RunError, match=r"\.metadata has 23 bytes"):
        _load(store, 10)
