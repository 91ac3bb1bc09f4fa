"""Whether exported plans read back as they were: the same layout and the same model.

    python -m benchmarks.export_round_trip [--jobs 200] [--seed 0]

Random valid layouts of several models (`benchmarks/export_jobs.py`) are drawn until so many are
taken by the target; each is exported, written, and imported from its files.

Megatron-LM's arguments are read by `megatron_layout`; that scripts pass exactly them is tested.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.export_jobs import Draws, exported_jobs
from benchmarks.megatron_layout import layout_of
from shardwright.planner.exporters.exported import Exported, Job
from shardwright.planner.exporters.megatron.arguments import Arguments
from shardwright.planner.importers.reading import Reading
from shardwright.planner.importers.torchtitan import read_torchtitan
from shardwright.specs import Layout, ModelSpec, Recompute
from shardwright.specs.rules import num_experts_of


def _read_megatron(job: Job, exported: Exported, _: Path) -> Reading:
    arguments = Arguments(exported.arguments)
    layout = layout_of(arguments, job.model, job.training, job.layout.world)
    return Reading("train.sh", "megatron-lm", model=job.model, layout=layout)


READERS: dict[str, Callable[[Job, Exported, Path], Reading]] = {
    "megatron-lm": _read_megatron,
    "torchtitan": lambda job, exported, folder: read_torchtitan(folder / "train.toml"),
}
"""By target: its files, read."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What came back otherwise."""

    model: str
    what: str


def difference(target: str, job: Job, exported: Exported) -> Difference | None:
    """The first field of the layout, or the model, that import gives otherwise; None if none."""
    with tempfile.TemporaryDirectory() as name:
        for file, text in exported.files.items():
            (Path(name) / file).write_text(text, encoding="utf-8")
        reading = READERS[target](job, exported, Path(name))
    if reading.layout is None or reading.model is None:
        return Difference(job.model.name, f"not read: {'; '.join(reading.unread)}")
    if reading.conflicts:
        return Difference(job.model.name, f"conflicts: {'; '.join(reading.conflicts)}")
    ours, theirs = plain(job.layout, job.model), plain(reading.layout, job.model)
    for field in Layout.model_fields:
        if getattr(ours, field) != getattr(theirs, field):
            return Difference(
                job.model.name, f"{field}: {getattr(ours, field)} became {getattr(theirs, field)}"
            )
    return model_difference(job, reading)


def model_difference(job: Job, reading: Reading) -> Difference | None:
    """The first block of the model that differs."""
    assert reading.model is not None
    pairs = zip(job.model.decoder.blocks, reading.model.decoder.blocks, strict=False)
    for ours, theirs in pairs:
        if ours != theirs:
            return Difference(job.model.name, f"{ours.kind}: {ours} became {theirs}")
    if job.model.num_parameters != reading.model.num_parameters:
        return Difference(job.model.name, "the number of parameters differs")
    return None


def plain(layout: Layout, model: ModelSpec) -> Layout:
    """Recomputation said in one way: all of a stage's layers as such, modules in their order, and
    core_attn as what is selected by default. Where there are no experts, their shard degree is of
    no effect. Nothing else is changed."""
    entries = (
        _plain_entry(entry, stage.num_layers)
        for entry, stage in zip(layout.recompute, layout.stages, strict=True)
    )
    changes: dict[str, Any] = {"recompute": tuple(entries)}
    if not num_experts_of(model):
        changes["expert_zero_shard_degree"] = 1
    return layout.model_copy(update=changes)


def _plain_entry(entry: Recompute, num_layers: int) -> Recompute:
    if entry.policy == "full" and (entry.num_layers or 0) >= num_layers:
        return Recompute(policy="full")
    if entry.policy == "selective":
        modules = tuple(sorted(entry.modules or ()))
        return entry.model_copy(
            update={"modules": None if modules == ("core_attn",) else modules or None}
        )
    return entry


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    failed = 0
    for target in READERS:
        draws, start_s, bad = Draws(), time.process_time(), []
        for job, exported in exported_jobs(target, given.jobs, seed=given.seed, draws=draws):
            found = difference(target, job, exported)
            bad += [found] if found is not None else []
        taken_s = time.process_time() - start_s
        sys.stdout.write(
            f"{target}: {given.jobs - len(bad)} of {given.jobs} come back the same;"
            f" {draws.num_drawn} drawn, {draws.invalid} broke our rules,"
            f" {draws.refused.total()} refused by the target; {taken_s:.1f} s\n"
        )
        for one in bad[:10]:
            sys.stdout.write(f"  {one.model}: {one.what[:200]}\n")
        failed += len(bad)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
