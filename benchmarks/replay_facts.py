"""BigScience's sweep of layouts before BLOOM was trained, as rows that `planner.validation` reads.

The trials are in ``replay_runs.toml``, each with its line of the chronicle. What the chronicle says
of all of them:

* Seconds are those of the second step: "for efficiency of finishing this process I take the
  snapshot of a single iteration (always 2nd)".
* Memory is that of ``nvidia-smi`` on the first and last nodes, which hold the embedding.
* fp16 with fp16 sums of gradients until 27 February, then bf16 with fp32 sums; ZeRO 1 throughout;
  every layer is computed again (``--checkpoint-activations``).
* From 25 February the nodes' PCIe and NUMA settings were better by 1 to 5 %: sections are not to be
  compared with one another.
* The vocabulary is given as "250k", sequences have 2,048 tokens; the heads of the first shape are
  not stated (128 wide is customary, and assumed).
* ``type:transformer|embedding``, from 27 February, lets embedding and head stand for a layer each
  when layers are dealt out to stages.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from shardwright.hardware_profiles.stacks import Fitted
from shardwright.planner.problem import ChoiceValue
from shardwright.planner.validation.rows import Row

_FOLDER = "https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml"
CHRONICLE = f"{_FOLDER}/chronicles-prequel.md"
README = f"{_FOLDER}/README.md"

STACK = "megatron-deepspeed"
GPUS_PER_NODE = 8
NETWORK = "4x Omni-Path 100Gb/s per node"
"""README: 4 OmniPath links a node; a link of that architecture has 100 Gb/s."""

FIXED: Mapping[str, ChoiceValue] = {"recompute": "full", "rank_order": "tp-cp-dp-pp"}
"""As ``plan --fix`` takes it: what every trial did, and the order of ranks in DeepSpeed's
``PipeModelDataParallelTopology``."""
FORBIDDEN = ("zero2", "zero3", "offload", "uneven_stages")
"""As ``plan --forbid`` takes it, beside what the catalogue says that the software lacks. The
pipeline engine asserts: "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"
(``deepspeed/runtime/pipe/engine.py``). Nothing was offloaded. Layers were dealt out evenly."""

NUM_TIMED_STEPS = 2
"""Of every trial: the second is the one that was read."""
FIRST_DAY, LAST_DAY, NUM_DAYS = "20 February", "28 February", 9

LAUNCHED = {
    "size": "176B", "layers": 70, "hidden": 14336, "heads": 112, "balances_embedding": True,
}  # fmt: skip
LAUNCHED_RUN = {"tp": 4, "pp": 12, "dp": 8, "micro_batch": 2, "batch": 2048, "step_s": 105}
"""README, "Replica setup"; 105 seconds a step in its formula for the days that are left."""

_HERE = Path(__file__).parent
UNSEEN, ELSEWHERE = _HERE / "replay_unseen.json", _HERE / "replay_elsewhere.json"
"""Numbers of the cost model without any run of Megatron-DeepSpeed, and without BigScience's alone;
written by ``python -m benchmarks.replay_fit``."""
_MEMORY_NOTE = "max over first/last pipeline ranks, nvidia-smi"
_BALANCED = "embedding counted as a layer"


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of the sweep."""

    section: str
    """The chronicle's heading: trials under one heading may be compared."""
    date: str
    """Of the section's first trials, ISO."""
    size: str
    """The model as the chronicle calls it."""
    balances_embedding: bool
    """Embedding and head may stand for a layer each when layers are dealt out."""
    row: Row


@cache
def numbers(path: Path = UNSEEN) -> Fitted:
    """What is known of software and kernels without the sweep."""
    return Fitted.from_json(path.read_text(encoding="utf-8"), source=path.name)


@cache
def trials() -> tuple[Trial, ...]:
    """The sweep in the chronicle's order."""
    return tuple(_trials(tomllib.loads((_HERE / "replay_runs.toml").read_text(encoding="utf-8"))))


def _trials(found: Mapping[str, Any]) -> Iterator[Trial]:
    for section in found["sections"]:
        for shape in section["shapes"]:
            for run in shape["runs"]:
                row = Row.model_validate(_row(section["title"], section["precision"], shape, run))
                yield Trial(
                    section["title"], str(section["date"]), shape["size"],
                    shape.get("balances_embedding", False), row,
                )  # fmt: skip


@cache
def launched() -> Trial:
    """BLOOM's own training."""
    row = Row.model_validate(_row("launched", "bf16", LAUNCHED, LAUNCHED_RUN))
    return Trial("launched", "2022-03-11", str(LAUNCHED["size"]), True, row)


def shape_in_words(row: Row) -> str:
    """``72 x 14336, 64 heads``: layers and hidden size."""
    model = row.model
    return f"{model.layers} x {model.hidden}, {model.heads or '?'} heads"


def _row(
    section: str, precision: str, shape: Mapping[str, Any], run: Mapping[str, Any]
) -> dict[str, Any]:
    gpus = run["tp"] * run["pp"] * run["dp"]
    heads = shape.get("heads")
    problem = (
        f"{section}: {shape['layers']} x {shape['hidden']}, {heads or '?'} heads,"
        f" batch {run['batch']}, {gpus} GPUs"
    )
    layout = f"tp{run['tp']} pp{run['pp']} dp{run['dp']} mb{run['micro_batch']}"
    return {
        "id": f"{problem}: {layout}",
        "status": "ok" if "step_s" in run else "oom",
        "stack": STACK,
        "problem": problem,
        "memory_kind": "device",
        "model": {
            "layers": shape["layers"], "hidden": shape["hidden"], "heads": heads,
            "kv_heads": heads, "ffn_hidden": 4 * shape["hidden"], "vocab": 250_000,
            "seq_len": 2048, "gated_mlp": False, "ffn_hidden_is": "dense width",
        },
        "hardware": {
            "accelerator": "A100-SXM4-80GB", "gpu_mem_gb": 80, "gpus": gpus,
            "gpus_per_node": GPUS_PER_NODE, "inter_node": NETWORK,
        },
        "parallel": {
            "tp": run["tp"], "pp": run["pp"], "dp": run["dp"], "cp": 1, "ep": 1, "vpp": 1,
            "zero": 1, "zero_shard_degree": "all", "sequence_parallel": False,
            "recompute": "full", "micro_batch": run["micro_batch"],
            "global_batch": run["batch"], "precision": precision,
            "schedule": "1f1b" if run["pp"] > 1 else None,
            "other": _BALANCED if shape.get("balances_embedding") else None,
        },
        "measured": {
            "iteration_time_s": run.get("step_s"), "peak_mem_gb": run.get("gb"),
            "mem_note": _MEMORY_NOTE,
        },
    }  # fmt: skip
