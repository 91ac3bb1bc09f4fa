"""Published training measurements as jobs that the cost model can price.

A row of the collection holds a model's shape, the hardware, the layout and what was measured; a
`Job` is the same in our nouns. What a source did not state is not guessed: such a row is skipped
and says why, as is one that the cost model does not describe. Four things are read into a row:

* no statement on sequence parallelism means none;
* HSDP without a degree shards within a node and replicates across nodes, as PyTorch's does;
* the network is what the row states, else what its hints remember, else that of the vendor's node;
* no statement on recompute means the fastest choice that is predicted to fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from shardwright.cost_models.step import StepModel
from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.specs import InputError, Layout, ModelSpec, Recompute, TrainingSpec
from shardwright.specs.sources import list_presets, model_from_config, resolve_model

_PRECISIONS = ("bf16", "bf16-pure", "fp16")
_PLAIN_SCHEDULES = (None, "1f1b", "gpipe")
_NETWORK = re.compile(r"(?:(\d+)x ?)?\D*?(\d+) ?(Gb/s|Gbps|GB/s) .*per (node|GPU)")
"""Such as ``8x HDR 200Gb/s InfiniBand per node``, ``1600 Gb/s RoCE per node``."""
_BYTES_PER_S = {"Gb/s": 1e9 / 8, "Gbps": 1e9 / 8, "GB/s": 1e9}


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class RowModel(_Record):
    """The model of a row; null where the source does not say."""

    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn_hidden: int | None = None
    vocab: int | None = None
    seq_len: int | None = None
    experts: int | None = None
    gated_mlp: bool | None = None
    hf_config: str | None = None

    @property
    def is_whole(self) -> bool:
        sizes = (self.layers, self.hidden, self.heads, self.ffn_hidden, self.vocab)
        return self.hf_config in list_presets() or None not in sizes


class RowHardware(_Record):
    """The hardware of a row."""

    accelerator: str | None = None
    """A name of the catalogue, in any case; null where it is no part of it."""
    gpus: int | None = None
    gpus_per_node: int | None = None
    intra_node: str | None = None
    inter_node: str | None = None

    @property
    def per_node(self) -> int:
        """Devices of a node that the run used."""
        assert self.gpus
        assert self.gpus_per_node
        return min(self.gpus, self.gpus_per_node)


class RowParallel(_Record):
    """The layout of a row."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    vpp: int | None = None
    zero: int | None = None
    zero_shard_degree: int | str | None = None
    sequence_parallel: bool | None = None
    recompute: str | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    precision: str | None = None
    schedule: str | None = None
    as_printed: dict[str, Any] | None = None

    @property
    def zero_stage(self) -> int | None:
        """One replica alone has nothing to shard, whatever the source says of ZeRO."""
        return 0 if self.dp == 1 else self.zero

    @property
    def is_hybrid(self) -> bool:
        """Sharded within a node, replicated across nodes."""
        return self.zero_shard_degree is None and (self.as_printed or {}).get("zero") == "HSDP"

    @property
    def states_degree(self) -> bool:
        return not self.zero_stage or self.zero_shard_degree is not None or self.is_hybrid

    @property
    def states_interleaving(self) -> bool:
        """With one pipeline rank, or a schedule of one stage per rank, there is none."""
        return self.vpp is not None or self.pp == 1 or self.schedule is not None


class RowTimes(_Record):
    """What was measured, or follows by arithmetic from what was."""

    iteration_time_s: float | None = None
    tokens_per_s_per_gpu: float | None = None


class Row(_Record):
    """One published measurement."""

    id: str
    kind: str
    quality: str
    status: str
    stack: str | None = None
    """The software that ran; rows of one stack share biases."""
    problem: str | None = None
    """Rows with the same text are layouts of one training job on one cluster."""
    model: RowModel = RowModel()
    hardware: RowHardware = RowHardware()
    parallel: RowParallel = RowParallel()
    measured: RowTimes = RowTimes()
    derived: RowTimes | None = None
    memory_hints: dict[str, Any] | None = None

    @property
    def step_time_s(self) -> float | None:
        """Never from FLOP rates, whose conventions differ between sources."""
        derived = self.derived or RowTimes()
        stated = self.measured.iteration_time_s or derived.iteration_time_s
        rate, gpus = self.measured.tokens_per_s_per_gpu, self.hardware.gpus
        batch, seq_len = self.parallel.global_batch, self.model.seq_len
        if stated or rate is None or gpus is None or batch is None or seq_len is None:
            return stated
        return batch * seq_len / (rate * gpus)

    @property
    def network(self) -> str | None:
        remembered = (self.memory_hints or {}).get("hardware.inter_node")
        return self.hardware.inter_node or remembered


@dataclass(frozen=True, slots=True)
class Job:
    """A row that can be priced."""

    row: Row
    source: str
    measured_s: float
    step_model: StepModel
    layouts: tuple[Layout, ...]
    """One; where recompute is not stated, none and full."""

    def predicted_s(self) -> float:
        """Of the fastest of the layouts that fit, or of all where none is predicted to."""
        predictions = [self.step_model.predict(layout) for layout in self.layouts]
        fitting = [p for p in predictions if p.memory_verdict != "does_not_fit"]
        return min(p.step_time_s for p in fitting or predictions)


def job_of(row: Row) -> Job | str:
    """The job of a row, or why there is none."""
    reason = next(_misfits(row), None)
    if reason is not None:
        return reason
    try:
        model = model_of(row.model, row.id)
    except InputError:
        return "model shape not valid"
    try:
        cluster = profile_of(row.hardware, row.network)
    except InputError:
        return "accelerator or network not known"
    training = TrainingSpec.model_validate(
        {
            "global_batch": row.parallel.global_batch,
            "seq_len": row.model.seq_len,
            "precision": row.parallel.precision,
        }
    )
    layouts = layouts_of(row.parallel, model, training, per_node=row.hardware.per_node)
    violations = layouts[0].violations(model, cluster.devices, training)
    if violations:
        return f"breaks the rule {violations[0].rule}"
    assert row.stack is not None
    assert row.step_time_s is not None
    step_model = StepModel(model, training, cluster)
    return Job(row, row.stack, row.step_time_s, step_model, layouts)


def _misfits(row: Row) -> Iterator[str]:
    """Everything that keeps a row from being priced, the most telling first."""
    model, parallel, hardware = row.model, row.parallel, row.hardware
    sizes = (parallel.tp, parallel.pp, parallel.dp, parallel.micro_batch, parallel.global_batch)
    checks = {
        "no training run": row.kind == "training_run",
        "out of memory": row.status == "ok",
        "contradicts itself (quality low)": row.quality != "low",
        "software not stated": row.stack is not None,
        "no step time": row.step_time_s is not None,
        "mixture of experts": not model.experts and (parallel.ep or 1) == 1,
        "context parallel": (parallel.cp or 1) == 1,
        "precision not stated": parallel.precision is not None,
        "precision other than bf16 and fp16": parallel.precision in _PRECISIONS,
        "selective recompute": parallel.recompute != "selective",
        "interleaved or zero-bubble schedule": (parallel.vpp or 1) == 1
        and parallel.schedule in _PLAIN_SCHEDULES,
        "accelerator not in the catalogue": hardware.accelerator is not None,
        "layout not stated in full": None not in sizes,
        "interleaving not stated": parallel.states_interleaving,
        "ZeRO not stated": parallel.zero_stage is not None,
        "ZeRO shard degree not stated": parallel.states_degree,
        "model shape not stated in full": model.is_whole and model.seq_len is not None,
        "devices per node not stated": None not in (hardware.gpus, hardware.gpus_per_node),
    }
    yield from (reason for reason, passed in checks.items() if not passed)


def model_of(shape: RowModel, name: str) -> ModelSpec:
    """The preset that a row names, else a GPT-2 or Llama of its shape."""
    if shape.hf_config in list_presets():
        assert shape.hf_config is not None
        return resolve_model(shape.hf_config)
    if shape.gated_mlp:
        config = {
            "model_type": "llama",
            "hidden_size": shape.hidden,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads or shape.heads,
            "intermediate_size": shape.ffn_hidden,
            "vocab_size": shape.vocab,
            "max_position_embeddings": shape.seq_len,
        }
    else:
        config = {
            "model_type": "gpt2",
            "n_embd": shape.hidden,
            "n_layer": shape.layers,
            "n_head": shape.heads,
            "n_inner": shape.ffn_hidden,
            "vocab_size": shape.vocab,
            "n_positions": shape.seq_len,
        }
    return model_from_config(config, name=name, source="published measurement").spec


def profile_of(hardware: RowHardware, network: str | None) -> HardwareProfile:
    """A cluster of the catalogue's accelerators, joined as the row says.

    Raises:
        InputError: the catalogue knows no such accelerator or no network for such nodes.
    """
    assert hardware.accelerator
    assert hardware.gpus
    slug = catalogue.accelerator(hardware.accelerator).name
    if "NVL72" in (hardware.intra_node or ""):
        return resolve_cluster(f"{slug.partition('-')[0]}-nvl72", gpus=hardware.gpus)
    per_node = hardware.per_node
    text = f"{slug}:{per_node}x{hardware.gpus // per_node}"
    bandwidth = node_bandwidth_bytes_per_s(network or "", per_node)
    return resolve_cluster(text if bandwidth is None else f"{text},inter={bandwidth}B/s")


def node_bandwidth_bytes_per_s(network: str, per_node: int) -> float | None:
    """What a description of a network says that a node may send; None where it does not."""
    found = _NETWORK.search(network)
    if found is None:
        return None
    count = int(found[1] or 1) * (per_node if found[4] == "GPU" else 1)
    return count * int(found[2]) * _BYTES_PER_S[found[3]]


def layouts_of(
    parallel: RowParallel, model: ModelSpec, training: TrainingSpec, *, per_node: int
) -> tuple[Layout, ...]:
    """The layout of a row under each recompute policy that it may have had."""
    policies = ("none", "full") if parallel.recompute is None else (parallel.recompute,)
    choices: dict[str, Any] = {
        "tp": parallel.tp,
        "pp": parallel.pp,
        "dp": parallel.dp,
        "zero": parallel.zero_stage,
        "micro_batch": parallel.micro_batch,
        "sequence_parallel": bool(parallel.sequence_parallel),
    }
    degree = per_node if parallel.is_hybrid else parallel.zero_shard_degree
    if isinstance(degree, int) and parallel.zero_stage:  # else "all", the default
        choices["zero_shard_degree"] = degree
    return tuple(
        Layout.of(model, training, recompute=Recompute.model_validate({"policy": p}), **choices)
        for p in policies
    )
