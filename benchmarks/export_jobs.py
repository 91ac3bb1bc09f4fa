"""Random jobs for exporters: valid layouts of several models, drawn until a target takes them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.exporters.api import export_job
from shardwright.planner.exporters.exported import Exported, Job
from shardwright.specs import ClusterSpec, InputError, Layout, ModelSpec, Recompute, TrainingSpec
from shardwright.specs.bodies import LatentAttentionBlock, MoeBlock
from shardwright.specs.sources import resolve_model
from shardwright.specs.world import divisors

MODELS: dict[str, tuple[str, ...]] = {
    "megatron-lm": (
        "llama-3.1-8b", "llama-3.1-405b", "llama-2-70b", "qwen2-7b", "qwen3-32b", "gpt-3-175b",
        "gpt2-xl", "mistral-7b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3",
    ),
    "torchtitan": (
        "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-3-8b", "llama-2-13b", "qwen3-32b",
        "qwen3-0.6b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v2",
    ),
    "deepspeed": ("llama-3.1-8b", "qwen2-7b", "gpt2-xl", "mixtral-8x7b", "bert-base-uncased"),
    "accelerate": ("llama-3.1-8b", "qwen2-7b", "gpt2-xl", "mixtral-8x7b", "bert-base-uncased"),
}  # fmt: skip
"""By target: what it can train; the last two train whatever a script builds."""

_SEQ_LENS = (2048, 4096)
_MODULES = (
    None, ("core_attn",), ("core_attn", "mlp"), ("norm",), ("moe", "norm"), ("moe_act",),
    ("mla_up_proj",), ("mlp", "norm"), ("shared_experts",),
)  # fmt: skip


@dataclass(slots=True)
class Draws:
    """What became of the layouts that were drawn."""

    num_drawn: int = 0
    invalid: int = 0
    """Break our own rules."""
    refused: Counter[str] = field(default_factory=Counter)
    """By the first words of the target's reason."""


def exported_jobs(target: str, count: int, *, seed: int, draws: Draws | None = None,
                  version: str | None = None) -> Iterator[tuple[Job, Exported]]:  # fmt: skip
    """``count`` jobs that the target can express, each with its files; the same for a seed."""
    drawn = draws or Draws()
    rng = random.Random(seed)
    names = MODELS[target]
    found = 0
    while found < count:
        job = _draw(rng, resolve_model(rng.choice(names)), target)
        drawn.num_drawn += 1
        if job.layout.violations(job.model, job.cluster, job.training):
            drawn.invalid += 1
            continue
        try:
            exported = export_job(job, target, version)
        except InputError as error:
            drawn.refused[_reason(error)] += 1
            continue
        found += 1
        yield job, exported


def _reason(error: InputError) -> str:
    words = error.problem.partition("plan: ")[2].split(";")[0]
    return "".join("N" if letter.isdigit() else letter for letter in words)[:60]


def _draw(rng: random.Random, model: ModelSpec, target: str) -> Job:
    """A job with degrees that mostly divide, so that few draws are in vain."""
    longest = model.max_seq_len or _SEQ_LENS[-1]
    seq_len = min(rng.choice(_SEQ_LENS), longest)
    world = rng.choice((8, 16, 32, 64, 128, 256))
    tp, cp, pp = _grid(rng, world, target)
    dp = max(1, world // (tp * cp * pp))
    micro_batch = rng.choice((1, 1, 2))
    count = rng.choice((1, 2, 3, 4)) * rng.choice((1, pp))
    training = TrainingSpec(global_batch=dp * micro_batch * count, seq_len=seq_len)
    choices: dict[str, Any] = {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "micro_batch": micro_batch,
        "sequence_parallel": tp > 1 and rng.random() < 0.8,
    }  # fmt: skip
    if cp > 1:
        choices["cp_kind"] = rng.choice(("ring", "all_gather", "all_to_all"))
    choices |= _expert_grid(rng, model, tp * cp * dp, tp)
    choices |= _pipeline(rng, model, pp)
    choices |= _STATE[target](rng, model, choices)
    choices["recompute"] = _recompute(rng, model, pp * choices.get("vpp", 1), target)
    layout = Layout.of(model, training, **choices)
    return Job(model, training, layout, _cluster(world))


def _grid(rng: random.Random, world: int, target: str) -> tuple[int, int, int]:
    """tp, cp and pp, with what DeepSpeed and accelerate leave to scripts now and then."""
    if target == "deepspeed":
        return rng.choice((1, 1, 1, 2, 4)), 1, 1
    if target == "accelerate":
        return 1, 1, 1
    tp, cp = rng.choice((1, 1, 2, 4, 8)), rng.choice((1, 1, 1, 2))
    return tp, cp, rng.choice([d for d in divisors(max(1, world // (tp * cp))) if d <= 16])


def _cluster(world: int) -> ClusterSpec:
    return resolve_cluster("dgx-h100", gpus=world).devices


def _expert_grid(rng: random.Random, model: ModelSpec, ranks: int, tp: int) -> dict[str, Any]:
    counts = {b.num_experts for b in _bodies(model) if isinstance(b, MoeBlock)}
    if not counts:
        return {}
    etp = rng.choice((1, tp))
    fitting = [d for d in divisors(min(counts)) if ranks % (d * etp) == 0]
    return {"ep": rng.choice(fitting or [1]), "etp": etp}


def _bodies(model: ModelSpec) -> list[Any]:
    layers = model.decoder.layers()
    return [branch.body for layer in layers for branch in layer.branches]


def _pipeline(rng: random.Random, model: ModelSpec, pp: int) -> dict[str, Any]:
    if pp == 1:
        return {}
    num_layers = model.decoder.num_layers
    vpp = rng.choice((1, 1, 2, 3)) if num_layers >= 3 * pp else 1
    schedule = "1f1b" if vpp == 1 else "interleaved-1f1b"
    if vpp == 2 and rng.random() < 0.3:
        schedule = rng.choice(("zb-v", "dualpipev"))
    found: dict[str, Any] = {"vpp": vpp, "schedule": schedule}
    kind, stages = rng.random(), pp * vpp
    if kind < 0.4:  # other ends
        first, last = rng.randint(0, 3), rng.randint(0, 3)
        inner = num_layers - first - last
        if stages > 2 and inner % (stages - 2) == 0:
            each = inner // (stages - 2)
            found["boundaries"] = tuple(first + each * index for index in range(stages - 1))
    elif kind < 0.8:
        found["boundaries"] = tuple(sorted(rng.randint(0, num_layers) for _ in range(stages - 1)))
    return found


def _megatron_state(
    rng: random.Random, model: ModelSpec, choices: dict[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {"zero": rng.choice((0, 1, 1, 1, 2, 3))}
    ranks, edp = choices["dp"] * choices["cp"], _edp(choices)
    if found["zero"] == 1 and rng.random() < 0.3:
        parts = rng.choice([d for d in divisors(ranks) if edp % d == 0])
        found["zero_shard_degree"] = ranks // parts
        if "ep" in choices:
            found["expert_zero_shard_degree"] = edp // parts
    if found["zero"] == 1 and rng.random() < 0.15:
        found["offload"] = ("optimizer",)
    if choices["pp"] == 1 and rng.random() < 0.1:
        found["offload"] = ("activations",)
    if rng.random() < 0.15:
        found["rank_order"] = "tp-cp-pp-dp"
    return found


def _titan_state(rng: random.Random, model: ModelSpec, choices: dict[str, Any]) -> dict[str, Any]:
    ranks, cp = choices["dp"] * choices["cp"], choices["cp"]
    if rng.random() < 0.1:
        return {"zero": 0}
    found: dict[str, Any] = {"zero": 3, "reshard_after_forward": rng.random() < 0.7,
                             "compile": rng.random() < 0.3}  # fmt: skip
    if rng.random() < 0.4:
        shard = cp * rng.choice(divisors(ranks // cp))
        found["zero_shard_degree"] = shard
        if "ep" in choices:
            grid = choices["etp"] * choices["ep"]
            found["expert_zero_shard_degree"] = max(1, shard * choices["tp"] // grid)
    if rng.random() < 0.15:
        found["offload"] = ("optimizer", "parameters")
    return found


def _script_state(rng: random.Random, model: ModelSpec, choices: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"zero": rng.choice((0, 1, 2, 3, 3)), "sequence_parallel": False,
                             "compile": rng.random() < 0.3}  # fmt: skip
    if found["zero"] == 3:
        found["reshard_after_forward"] = rng.random() < 0.8
        if rng.random() < 0.3:
            found["zero_shard_degree"] = rng.choice(divisors(choices["dp"]))
    if found["zero"] and rng.random() < 0.3:
        found["offload"] = rng.choice((("optimizer",), ("optimizer", "parameters")))
    return found


_STATE: dict[str, Callable[[random.Random, ModelSpec, dict[str, Any]], dict[str, Any]]] = {
    "megatron-lm": _megatron_state,
    "torchtitan": _titan_state,
    "deepspeed": _script_state,
    "accelerate": _script_state,
}


def _edp(choices: dict[str, Any]) -> int:
    ranks = choices["tp"] * choices["cp"] * choices["dp"]
    return max(1, int(ranks // (choices.get("etp", 1) * choices.get("ep", 1))))


def _recompute(
    rng: random.Random, model: ModelSpec, num_stages: int, target: str
) -> Recompute | tuple[Recompute, ...]:
    kind = rng.random()
    if kind < 0.35:
        return Recompute()
    if kind < 0.55:
        return Recompute(policy="full")
    if kind < 0.75 or target != "megatron-lm":
        return Recompute(policy="full", num_layers=rng.randint(1, 4))
    is_latent = any(isinstance(body, LatentAttentionBlock) for body in _bodies(model))
    modules = rng.choice(_MODULES)
    if modules is not None and "mla_up_proj" in modules and not is_latent:
        modules = None
    return Recompute(policy="selective", modules=modules)
