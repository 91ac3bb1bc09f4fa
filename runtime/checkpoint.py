"""Checkpoints of a run: atomic, hashed, complete, and loadable under any layout.

    <folder>/latest                  the name of the newest checkpoint, written last
    <folder>/step-000060/            appears complete or not at all
        __<rank>_0.distcp            tensors of one rank (torch.distributed.checkpoint)
        .metadata                    which box of which tensor lies where
        plan.json                    the plan that was running
        manifest.json                `CheckpointManifest`: step, facts, SHA-256 of every file

A checkpoint is written into ``step-000060.partial``, synced, and renamed; then ``latest`` moves on,
and older ones are removed. Whatever fails on the way, the previous checkpoint is untouched.
Every rank must see the same folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch.distributed as dist
from pydantic import NonNegativeInt, PositiveInt
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from shardwright.runtime.pieces import Piece, PieceLoadPlanner, PieceSavePlanner
from shardwright.runtime.ranks import reason_of, together
from shardwright.specs import (
    InputError,
    ModelSpec,
    Plan,
    Precision,
    RunError,
    Spec,
)

logger = logging.getLogger(__name__)

CHECKPOINT_SCHEMA: Literal["shardwright.checkpoint/1"] = "shardwright.checkpoint/1"

_MANIFEST = "manifest.json"
_LATEST = "latest"


class RunFacts(Spec):
    """What must be equal for a run to continue as if it had never stopped."""

    model_hash: str
    """Of the blocks and edges; names and sources may differ."""
    precision: Precision
    seed: NonNegativeInt
    global_batch: PositiveInt
    seq_len: PositiveInt
    data_fingerprint: str

    @classmethod
    def of(cls, plan: Plan, data_fingerprint: str) -> RunFacts:
        training = plan.training
        return cls(
            model_hash=model_hash(plan.model),
            precision=training.precision,
            seed=training.seed,
            global_batch=training.global_batch,
            seq_len=training.seq_len,
            data_fingerprint=data_fingerprint,
        )

    def check_same(self, stored: RunFacts, folder: Path) -> None:
        """Raise `InputError` naming each fact that differs from the checkpoint's."""
        different = [
            f"{name} is {getattr(self, name)}, there {getattr(stored, name)}"
            for name in type(self).model_fields
            if getattr(self, name) != getattr(stored, name)
        ]
        if different:
            raise InputError(
                f"the checkpoint in {folder} belongs to another run: {'; '.join(different)}",
                fix="use the model, --data and --seed that it was made with, or another --save",
            )


def model_hash(model: ModelSpec) -> str:
    """SHA-256 of what a model computes, whatever it is called and wherever it was read."""
    anonymous = model.model_copy(update={"name": "", "family": "", "source": ""})
    return anonymous.content_hash()


class FileDigest(Spec):
    """Size and SHA-256 of one file."""

    num_bytes: NonNegativeInt
    sha256: str


class CheckpointManifest(Spec):
    """What a checkpoint holds."""

    schema_version: Literal["shardwright.checkpoint/1"] = CHECKPOINT_SCHEMA
    step: PositiveInt
    """Optimizer steps done; the next step trains sample step x global_batch of the order."""
    facts: RunFacts
    plan_hash: str
    num_parameters: PositiveInt
    files: dict[str, FileDigest]
    seal: str = ""
    """SHA-256 of this manifest with an empty seal."""

    def sealed(self) -> CheckpointManifest:
        return self.model_copy(update={"seal": self._open().content_hash()})

    @property
    def seal_is_right(self) -> bool:
        return self.seal == self._open().content_hash()

    def _open(self) -> CheckpointManifest:
        return self.model_copy(update={"seal": ""})


class CheckpointStore:
    """The checkpoints of one run. `save` and `load` are collective over all ranks."""

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        """``keep``: how many of the newest checkpoints stay."""
        assert keep >= 1
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """Steps of all complete checkpoints, ascending."""
        names = (path.name.removeprefix("step-") for path in self.folder.glob("step-*"))
        return sorted(int(name) for name in names if name.isdigit())

    def latest_step(self) -> int | None:
        """The step to resume from: what ``latest`` names, else the highest; None without any."""
        steps = self.steps()
        with contextlib.suppress(OSError, UnicodeDecodeError):
            name = (self.folder / _LATEST).read_text(encoding="utf-8").strip()
            named = name.removeprefix("step-")
            if named.isdigit() and int(named) in steps:
                return int(named)
        return steps[-1] if steps else None

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"

    def refuse_if_used(self) -> None:
        """Raise `InputError` where the folder holds checkpoints, which a new run would replace."""
        step = self.latest_step()
        if step is not None:
            raise InputError(
                f"{self.folder} holds a run's checkpoints up to step {step}",
                fix="add --resume to continue that run, or give another folder with --save",
            )

    def read_manifest(self, step: int | None = None) -> CheckpointManifest:
        """The manifest of a checkpoint, by default the latest.

        Raises:
            InputError: there is no checkpoint.
            RunError: its manifest is missing, cut or altered.
        """
        step = self.latest_step() if step is None else step
        if step is None:
            raise InputError(
                f"there is no checkpoint in {self.folder}",
                fix="start the run without --resume, or name the folder of its checkpoints with"
                " --save",
            )
        path = self.path(step) / _MANIFEST
        try:
            manifest = CheckpointManifest.from_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, InputError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a manifest"
            raise self._damaged(step, f"{_MANIFEST} cannot be read: {reason}") from None
        if not manifest.seal_is_right or manifest.step != step:
            raise self._damaged(step, f"{_MANIFEST} was altered")
        return manifest

    def save(self, step: int, pieces: Sequence[Piece], facts: RunFacts, plan: Plan) -> Path:
        """Store every rank's pieces as the checkpoint of ``step``.

        Raises:
            RunError: on every rank alike, where any failed or the pieces are not the whole model;
                the previous checkpoint is untouched.
        """
        partial = self.path(step).with_suffix(".partial")
        try:
            with _as_run_error(f"cannot save the checkpoint of step {step}", self._last_words()):
                together(lambda: _fresh_folder(partial) if _rank() == 0 else None)
                self._write_tensors(partial, pieces, plan)
                digests = together(lambda: _own_digests(partial, plan))
                manifest = CheckpointManifest(
                    step=step,
                    facts=facts,
                    plan_hash=plan.content_hash(),
                    num_parameters=plan.model.num_parameters,
                    files={name: digest for each in digests for name, digest in each.items()},
                )
                together(lambda: self._publish(partial, manifest) if _rank() == 0 else None)
        finally:
            if _rank() == 0:
                shutil.rmtree(partial, ignore_errors=True)
        return self.path(step)

    def _write_tensors(self, partial: Path, pieces: Sequence[Piece], plan: Plan) -> None:
        kinds = {piece.name.partition("/")[0] for piece in pieces}
        all_kinds = set().union(*together(lambda: kinds))
        counts = dict.fromkeys(sorted(all_kinds), plan.model.num_parameters)
        with _quiet():
            save_tensors(
                {},
                storage_writer=FileSystemWriter(partial),
                planner=PieceSavePlanner(pieces, counts),
                no_dist=not dist.is_initialized(),
            )

    def _publish(self, partial: Path, manifest: CheckpointManifest) -> None:
        """Seal the folder, rename it, move ``latest`` on, and remove what is too old."""
        _write_synced(partial / _MANIFEST, manifest.sealed().to_json())
        _sync_folder(partial)
        target = self.path(manifest.step)
        if target.exists():  # of a run that was set back to an earlier step
            shutil.rmtree(target)
        partial.rename(target)
        pointer = self.folder / f".{_LATEST}.partial"
        _write_synced(pointer, f"{target.name}\n")
        pointer.replace(self.folder / _LATEST)
        _sync_folder(self.folder)
        older = [step for step in self.steps() if step <= manifest.step]
        for step in older[: -self.keep]:
            shutil.rmtree(self.path(step), ignore_errors=True)

    def load(self, step: int, pieces: Sequence[Piece]) -> None:
        """Fill every rank's pieces from the checkpoint of ``step``, after checking its hashes.

        Raises:
            RunError: on every rank alike, where a file is missing, cut or altered, or tensors lack.
        """
        manifest = self.read_manifest(step)
        with _as_run_error(f"cannot load the checkpoint {self.path(step)}", self._way_back(step)):
            together(lambda: self._check_files(manifest))
            with _quiet():
                load_tensors(
                    {},
                    storage_reader=FileSystemReader(self.path(step)),
                    planner=PieceLoadPlanner(pieces),
                    no_dist=not dist.is_initialized(),
                )

    def _check_files(self, manifest: CheckpointManifest) -> None:
        """Compare this rank's share of the files with their digests."""
        world = dist.get_world_size() if dist.is_initialized() else 1
        for name in sorted(manifest.files)[_rank() :: world]:
            digest = manifest.files[name]
            path = self.path(manifest.step) / name
            if not path.exists():
                raise RunError(f"its file {name} is missing")
            num_bytes = path.stat().st_size
            if num_bytes != digest.num_bytes:
                raise RunError(f"its file {name} has {num_bytes} bytes, not {digest.num_bytes}")
            if _sha256(path) != digest.sha256:
                raise RunError(f"its file {name} was altered: its SHA-256 differs")

    def _damaged(self, step: int, what: str) -> RunError:
        return RunError(
            f"cannot load the checkpoint {self.path(step)}: {what}", fix=self._way_back(step)
        )

    def _way_back(self, step: int) -> str:
        earlier = [other for other in self.steps() if other < step]
        if not earlier:
            return "restore its files, or start the run anew"
        return (
            f"restore its files, or go back to step {earlier[-1]}: write"
            f" {self.path(earlier[-1]).name} into {self.folder / _LATEST}"
        )

    def _last_words(self) -> str:
        step = self.latest_step()
        safe = "there is none before it" if step is None else f"the one of step {step} is untouched"
        return f"free space or repair the folder ({safe}), then run again with --resume"


@contextlib.contextmanager
def _as_run_error(problem: str, fix: str) -> Iterator[None]:
    """Turn what failed, on any rank and therefore on all, into one line beginning ``problem``."""
    try:
        yield
    except RunError as error:
        said = error.problem
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        said = f"{reason_of(cause)} (rank {rank})"
    else:
        return
    failure = RunError(f"{problem}: {said}", fix=fix)
    failure.on_every_rank = True
    raise failure


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warning that one process alone is saving: that is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _fresh_folder(path: Path) -> None:
    for stale in path.parent.glob("step-*.partial"):
        shutil.rmtree(stale)
    path.mkdir(parents=True)


def _own_digests(partial: Path, plan: Plan) -> Mapping[str, FileDigest]:
    """Digests of the files that this rank wrote; the first rank's include the shared ones."""
    paths = sorted(partial.glob(f"__{_rank()}_*"))
    if _rank() == 0:
        _write_synced(partial / "plan.json", plan.to_json())
        paths += [partial / ".metadata", partial / "plan.json"]
    return {
        path.name: FileDigest(num_bytes=path.stat().st_size, sha256=_sha256(path)) for path in paths
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
