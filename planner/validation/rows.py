"""A file of measured runs, row by row: strict about the file, kind to single rows.

A file is a JSON list of rows, or an object that holds the list as ``rows`` or ``runs``. What is no
such list is refused. A row that cannot be read is kept with the reason, so that it can be listed as
skipped; fields that are not named here are ignored. Null means: the source does not say.

Step time = ``measured.iteration_time_s``, else ``derived.iteration_time_s``, else global_batch x
seq_len / (tokens_per_s_per_gpu x gpus). It never follows from FLOP rates, whose conventions differ
from source to source.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveFloat, ValidationError

from shardwright.specs import InputError
from shardwright.specs._base import describe_misfits, parse_json
from shardwright.specs.plan import read_text
from shardwright.specs.ranges import (
    MOST_LAYERS,
    Degree,
    Extent,
    HeadCount,
    LayerCount,
    SequenceCount,
)

MemoryKind = Literal["device", "reserved", "allocated_or_unknown"]
"""``device``: all that the device has given out, a process's context included (nvidia-smi);
``reserved``: what the framework's allocator holds; else what its tensors take up, or not said."""

GIB = 2**30

_SCORED_KINDS = ("training_run", "memory_only")


def _words(value: Any) -> Any:
    """A remark as text: some sources keep lists or objects in a field for remarks."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


Remark = Annotated[str | None, BeforeValidator(_words)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class RowModel(_Record):
    """The model of a row."""

    name: str | None = None
    layers: LayerCount | None = None
    hidden: Extent | None = None
    heads: HeadCount | None = None
    kv_heads: HeadCount | None = None
    ffn_hidden: Extent | None = None
    ffn_hidden_is: str | None = None
    """``expert width`` where ``ffn_hidden`` is that of one expert."""
    vocab: Extent | None = None
    seq_len: Extent | None = None
    experts: int | None = Field(default=None, ge=0, le=100_000)
    topk: int | None = Field(default=None, ge=0, le=100_000)
    gated_mlp: bool | None = None
    hf_config: str | None = None
    """The name of a Hugging Face config that describes it."""
    other: Remark = None


class RowHardware(_Record):
    """The hardware of a row."""

    gpu: str | None = None
    """As the source calls it."""
    accelerator: str | None = None
    """Its name in the catalogue, in any case; null where it is no part of it."""
    gpu_mem_gb: PositiveFloat | None = Field(default=None, le=1e6)
    gpus: Degree | None = None
    gpus_per_node: Degree | None = None
    intra_node: Remark = None
    inter_node: Remark = None


class RowParallel(_Record):
    """The layout of a row."""

    tp: Degree | None = None
    pp: Degree | None = None
    dp: Degree | None = None
    cp: Degree | None = None
    ep: Degree | None = None
    etp: Degree | None = None
    vpp: int | None = Field(default=None, ge=1, le=MOST_LAYERS)
    zero: Literal[0, 1, 2, 3] | None = None
    zero_shard_degree: Degree | Literal["all"] | None = None
    reshard_after_forward: bool | None = None
    sequence_parallel: bool | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    recompute_modules: tuple[str, ...] | None = None
    micro_batch: SequenceCount | None = None
    global_batch: SequenceCount | None = None
    num_microbatches: SequenceCount | None = None
    precision: str | None = None
    schedule: str | None = None
    compile: bool | None = None
    other: Remark = None
    as_printed: dict[str, Any] | None = None

    @property
    def is_hybrid(self) -> bool:
        """Sharded within a node, replicated across nodes (PyTorch's HSDP)."""
        printed = str((self.as_printed or {}).get("zero", ""))
        return self.zero_shard_degree is None and "HSDP" in printed


class RowMeasured(_Record):
    """What was measured."""

    iteration_time_s: PositiveFloat | None = None
    tokens_per_s_per_gpu: PositiveFloat | None = None
    peak_mem_gib: PositiveFloat | None = None
    peak_mem_gb: PositiveFloat | None = None
    mem_note: Remark = None


class RowDerived(_Record):
    """What follows by arithmetic from what was measured."""

    iteration_time_s: PositiveFloat | None = None


class Row(_Record):
    """One measured run."""

    id: str = Field(min_length=1)
    kind: str = "training_run"
    status: str = "ok"
    stack: str | None = None
    """The software that ran; rows of one stack share biases."""
    problem: str | None = None
    """Rows with the same text are layouts of one training job on one cluster."""
    memory_kind: MemoryKind | None = None
    model: RowModel = RowModel()
    hardware: RowHardware = RowHardware()
    parallel: RowParallel = RowParallel()
    measured: RowMeasured = RowMeasured()
    derived: RowDerived | None = None
    memory_hints: dict[str, Any] | None = None
    """What was only remembered of a source."""
    notes: Remark = None

    @property
    def is_oom(self) -> bool:
        return self.status.strip().lower() == "oom"

    @property
    def is_fragmentation(self) -> bool:
        """Ran out of memory only now and then: it also ran, with a peak that was read."""
        return self.is_oom and self.peak_memory_bytes is not None

    @property
    def num_gpus(self) -> int | None:
        """As stated, else what the degrees multiply to."""
        if self.hardware.gpus is not None:
            return self.hardware.gpus
        parallel = self.parallel
        if parallel.tp is None or parallel.pp is None or parallel.dp is None:
            return None
        return parallel.tp * parallel.pp * parallel.dp * (parallel.cp or 1)

    @property
    def step_time_s(self) -> float | None:
        """As said at the top of this file."""
        derived = self.derived or RowDerived()
        stated = self.measured.iteration_time_s or derived.iteration_time_s
        rate, gpus = self.measured.tokens_per_s_per_gpu, self.num_gpus
        batch, seq_len = self.parallel.global_batch, self.model.seq_len
        if stated or rate is None or gpus is None or batch is None or seq_len is None:
            return stated
        return batch * seq_len / (rate * gpus)

    @property
    def peak_memory_bytes(self) -> float | None:
        if self.measured.peak_mem_gib is not None:
            return self.measured.peak_mem_gib * GIB
        return None if self.measured.peak_mem_gb is None else self.measured.peak_mem_gb * 1e9

    @property
    def precision(self) -> str | None:
        """As stated, else where the source prints the results of another granularity beside those
        of its FP8 recipe: FP8 with a scale for each block (of 32 x 32 on Blackwell, 1 x 128 and
        128 x 128 on H100; notes of Megatron-Bridge's performance pages)."""
        printed = str((self.parallel.as_printed or {}).get("precision", ""))
        stated = self.parallel.precision
        return "fp8-block" if stated is None and "alternate granularity" in printed else stated

    @property
    def kind_of_memory(self) -> MemoryKind:
        return self.memory_kind or "allocated_or_unknown"

    @property
    def network(self) -> str | None:
        """What is said of the network between nodes, else what is remembered of it."""
        remembered = (self.memory_hints or {}).get("hardware.inter_node")
        return self.hardware.inter_node or (remembered if isinstance(remembered, str) else None)

    @property
    def is_full_configuration(self) -> bool:
        """Whether a training run states all that its step time depends on, and has one."""
        model, parallel = self.model, self.parallel
        sizes = (
            model.layers, model.hidden, model.heads, model.ffn_hidden, model.vocab, model.seq_len,
            self.hardware.gpus, parallel.tp, parallel.pp, parallel.dp, parallel.micro_batch,
            parallel.global_batch, self.step_time_s,
        )  # fmt: skip
        return self.kind == "training_run" and None not in sizes

    @property
    def configuration(self) -> str:
        """Equal for rows that repeat one configuration of one stack; remarks that may tell runs
        apart count."""
        model = self.model.model_dump(exclude={"name"})
        hardware = self.hardware.model_dump(include={"accelerator", "gpus", "gpus_per_node"})
        parallel = self.parallel.model_dump(exclude={"as_printed"})
        return json.dumps([self.stack, model, hardware, self.network, parallel], sort_keys=True)

    @property
    def why_not_scored(self) -> str | None:
        """Why nothing of this row can be compared with a prediction; None where something can."""
        if self.kind not in _SCORED_KINDS:
            return f"a {self.kind.replace('_', ' ')} is no training run"
        if self.status.strip().lower() not in ("ok", "oom"):
            return f"its status is {self.status!r}, neither ok nor oom"
        if self.is_oom or self.peak_memory_bytes is not None:
            return None
        if self.kind == "training_run" and self.step_time_s is not None:
            return None
        return "neither a step time nor a peak memory was measured"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row that is none, and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunsFile:
    """All rows of a file in its order."""

    rows: tuple[Row | Unreadable, ...]


def read_runs(path: Path) -> RunsFile:
    """Every row of a file.

    Raises:
        InputError: no such file, not JSON, no list of rows, or none that can be read.
    """
    found = parse_json(read_text(path, what="runs"), source=str(path))
    if isinstance(found, dict):
        found = next((found[key] for key in ("rows", "runs") if key in found), found)
    if not isinstance(found, list) or not found:
        kind = "an empty list" if found == [] else f"no list of runs (a {type(found).__name__})"
        raise InputError(f"{path} holds {kind}", fix="give a JSON list with one object per run")
    rows = parse_rows(found)
    if all(isinstance(row, Unreadable) for row in rows):
        first = rows[0]
        assert isinstance(first, Unreadable)
        raise InputError(
            f"{path} holds {len(rows)} rows, but none that can be read",
            why=f"the first: {first.reason}",
            fix="correct the named fields",
        )
    return RunsFile(rows)


def parse_rows(values: Sequence[Any]) -> tuple[Row | Unreadable, ...]:
    """Rows from parsed JSON; of several with one id all but the first are unreadable."""
    rows: list[Row | Unreadable] = []
    seen: set[str] = set()
    for number, value in enumerate(values, start=1):
        row = _row(value, number)
        if row.id in seen:
            row = Unreadable(f"row {number} ({row.id})", f"the id {row.id!r} is given twice")
        seen.add(row.id)
        rows.append(row)
    return tuple(rows)


def _row(value: Any, number: int) -> Row | Unreadable:
    if not isinstance(value, dict):
        return Unreadable(f"row {number}", f"a {type(value).__name__} is no run")
    given = value.get("id")
    name = given if isinstance(given, str) and given else f"row {number}"
    present = {key: part for key, part in value.items() if part is not None or key == "id"}
    try:
        return Row.model_validate(present)
    except (ValidationError, RecursionError) as error:
        told = describe_misfits(error, most=2) if isinstance(error, ValidationError) else str(error)
        return Unreadable(name, f"cannot be read: {told}")
