"""Checks of user cases as jobs that can be priced: model, cluster, training and layout.

A check is one JSON object: ``id``, ``model``, ``cluster``, ``training``, ``layout``, ``variants``,
``check``. Where a layout is null, or one of its values, the planner chooses. What a layout does not
mention (offload, chunked loss, stages) takes its plainest value: nothing is offloaded, the loss is
in one piece, layers are spread evenly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shardwright.cost_models.pricing import stack_model
from shardwright.cost_models.stacks.step import StackModel
from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.hardware_profiles.stacks import GENERIC, stack_facts
from shardwright.planner.layout_text import normalise_choices
from shardwright.planner.layouts import even_boundaries
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.stacks.search import search_stacks
from shardwright.planner.validation.choose import choose
from shardwright.planner.validation.problem import DEFAULT_ADAPTER_RANK
from shardwright.planner.validation.rows import RowModel
from shardwright.planner.validation.shapes import Assumptions, Configs, model_of
from shardwright.specs import (
    ClusterSpec,
    InputError,
    Layout,
    ModelSpec,
    OptimizerSpec,
    Precision,
    Prediction,
    Recompute,
    ScheduleName,
    SoftwareSpec,
    TrainingSpec,
)
from shardwright.specs._base import describe_misfits
from shardwright.specs.layout import place_stages
from shardwright.specs.sources import model_from_config

GIB = 2**30
STACKS = {
    "TT": "torchtitan", "MB": "megatron-bridge", "MPT": "llm-foundry", "BS": "megatron-deepspeed",
}  # fmt: skip
"""The software that a case ran, by the first word of its name, which names the source: torchtitan,
Megatron-Bridge, llm-foundry, BigScience. Every other case is taken to have run `GENERIC`."""
LOSS_CHUNKS = 8
"""Pieces of a chunked loss where their number is not stated: torchtune's default
(CEWithChunkedOutputLoss, num_output_chunks)."""
_SLUG_TAILS = ("", "-tray", "-ra")
"""What catalogue names of nodes may have behind our slugs."""

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """One training job with one layout, or with the choices that are fixed."""

    model: ModelSpec
    profile: HardwareProfile
    training: TrainingSpec
    software: SoftwareSpec
    choices: Record
    """What the layout states, by name; values that the planner chooses are absent."""
    is_open: bool
    """Whether anything is left to the planner."""

    @property
    def problem(self) -> Problem:
        return Problem(self.model, self.training, self.profile, self.software)

    @property
    def stack(self) -> StackModel:
        return stack_model(self.model, self.training, self.profile, self.software)


@dataclass(frozen=True, slots=True)
class Priced:
    """A job's layout and what it costs."""

    layout: Layout
    prediction: Prediction
    host_bytes: int
    """Host memory that a node needs for what is offloaded."""
    host_capacity_bytes: int | None

    @property
    def peak_gib(self) -> float:
        return max(self.prediction.peak_memory_bytes) / GIB

    @property
    def fits_host(self) -> bool:
        return self.host_capacity_bytes is None or self.host_bytes <= self.host_capacity_bytes


# Files


def read_checks(path: Path) -> list[Record]:
    """The checks of a file, a list or ``{"checks": [...]}``; raises `InputError`."""
    value = _json(path)
    rows = value.get("checks") if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(
            f"{path} is no list of checks", fix="give a list of objects with id, model and check"
        )
    return rows


def read_configs(path: Path) -> dict[str, dict[str, Any]]:
    """Hugging Face configs by name, each alone or under ``config``; raises `InputError`."""
    value = _json(path)
    if not isinstance(value, dict) or not all(isinstance(one, dict) for one in value.values()):
        raise InputError(f"{path} is no object of model configs by name")
    return {name: one.get("config", one) for name, one in value.items()}


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None


# Jobs


def job_of(check: Record, configs: Configs) -> Job:
    """The job of a check; raises `InputError` where it makes none."""
    for name in ("model", "cluster", "training"):
        if not isinstance(check.get(name), Mapping):
            raise InputError(f"the check has no {name}")
    training, layout = check["training"], check.get("layout")
    seq_len = training.get("seq_len")
    if layout is not None and not isinstance(layout, Mapping):
        raise InputError("its layout is no object")
    try:
        return Job(
            model=_model(check["model"], seq_len, configs),
            profile=_profile(check["cluster"]),
            training=_training(training),
            software=_software(check),
            choices={k: v for k, v in (layout or {}).items() if v is not None},
            is_open=layout is None or _has_open(layout),
        )
    except ValidationError as error:
        raise InputError(f"the check makes no job: {describe_misfits(error, most=2)}") from None


def _software(check: Record) -> SoftwareSpec:
    """What is known of the stack that the check or its case names."""
    case = str(check.get("case") or check.get("id") or "")
    name = str(check.get("framework") or STACKS.get(case.split("-")[0], GENERIC))
    facts = stack_facts(name)
    return facts.software.model_copy(update={"framework": name})


def _has_open(layout: Record) -> bool:
    """Whether a null leaves a choice: a single stage has no schedule."""
    moot = {"schedule", "vpp"} if layout.get("pp") == 1 else set()
    moot |= {"sequence_parallel"} if layout.get("tp") == 1 else set()
    return any(value is None and name not in moot for name, value in layout.items())


def variants_of(check: Record) -> dict[str, Record]:
    """The variants by name, each the check with its overrides; raises `InputError`."""
    found: dict[str, Record] = {}
    for one in check.get("variants") or ():
        if not isinstance(one, Mapping) or "name" not in one:
            raise InputError("a variant has no name")
        found[str(one["name"])] = {**check, **{k: v for k, v in one.items() if k != "name"}}
    return found


def model_alone(check: Record, configs: Configs) -> ModelSpec:
    """The model of a check as its config has it, whatever the length of sequences."""
    if not isinstance(check.get("model"), Mapping):
        raise InputError("the check has no model")
    return _model(check["model"], None, configs)


def _model(stated: Record, seq_len: int | None, configs: Configs) -> ModelSpec:
    name = stated.get("hf_config")
    if name is not None:
        row = RowModel(hf_config=name, seq_len=seq_len)
        return model_of(row, configs=configs, assumed=Assumptions())
    sizes = stated.get("decoder")
    if not isinstance(sizes, Mapping):
        raise InputError("the model has neither hf_config nor decoder")
    if sizes.get("gated_mlp") and not sizes.get("experts"):
        return model_from_config(_llama(sizes, seq_len), name="decoder", source="sizes").spec
    row = RowModel(
        name="decoder", layers=sizes.get("layers"), hidden=sizes.get("hidden"),
        heads=sizes.get("heads"), kv_heads=sizes.get("kv_heads"), ffn_hidden=sizes.get("ffn"),
        vocab=sizes.get("vocab"), seq_len=seq_len, gated_mlp=bool(sizes.get("gated_mlp")),
        experts=sizes.get("experts"), topk=sizes.get("topk", sizes.get("top_k")),
        other=None if sizes.get("tied", True) else "untied",
    )  # fmt: skip
    return model_of(row, configs=configs, assumed=Assumptions())


def _llama(sizes: Record, seq_len: int | None) -> dict[str, Any]:
    """The config of a Llama of these sizes."""
    try:
        heads = sizes["heads"]
        return {
            "model_type": "llama", "hidden_size": sizes["hidden"],
            "num_hidden_layers": sizes["layers"], "num_attention_heads": heads,
            "num_key_value_heads": sizes.get("kv_heads") or heads,
            "intermediate_size": sizes["ffn"], "vocab_size": sizes["vocab"],
            "tie_word_embeddings": bool(sizes.get("tied", False)), "hidden_act": "silu",
            "rms_norm_eps": 1e-5, "max_position_embeddings": seq_len or 2048,
        }  # fmt: skip
    except KeyError as error:
        raise InputError(f"the decoder has no {error.args[0]}") from None


def _training(stated: Record) -> TrainingSpec:
    if stated.get("global_batch") is None or stated.get("seq_len") is None:
        raise InputError("the training has no global_batch or no seq_len")
    name = str(stated.get("precision") or "bf16").lower()
    if name not in [*map(str, Precision), "fp8"]:
        raise InputError(f"the precision {name!r} is not known")
    tokens = stated.get("tokens")
    return TrainingSpec(
        global_batch=stated["global_batch"],
        seq_len=stated["seq_len"],
        precision=Precision(name),
        optimizer=OptimizerSpec(name=stated.get("optimizer") or "adamw"),
        trainable=_trainable(stated),
        token_budget=None if tokens is None else int(tokens),
    )


def _trainable(stated: Record) -> str:
    kind = str(stated.get("trainable") or "full")
    if kind not in ("lora", "qlora"):
        return kind
    return f"{kind}:{stated.get('lora_rank') or stated.get('adapter_rank') or DEFAULT_ADAPTER_RANK}"


# Clusters


def _profile(stated: Record) -> HardwareProfile:
    """The catalogue's node where it is named and of the stated size, else the accelerators joined
    as stated."""
    nodes, per_node = stated.get("nodes") or 1, stated.get("gpus_per_node")
    if not isinstance(per_node, int) or not isinstance(nodes, int):
        raise InputError("the cluster has no count of nodes and gpus_per_node")
    base = _named(stated, nodes, per_node) or _inline(stated, nodes, per_node)
    host_gib = stated.get("host_memory_gib")
    if host_gib is None:
        return base
    group = base.devices.groups[0].model_copy(update={"host_memory_bytes": int(host_gib * GIB)})
    devices = ClusterSpec(name=base.devices.name, groups=(group,))
    return base.model_copy(update={"devices": devices})


def _named(stated: Record, nodes: int, per_node: int) -> HardwareProfile | None:
    slug = _node_slug(stated.get("node_id"))
    if slug is None or stated.get("memory_gib") is not None:
        return None
    group = catalogue.node(slug)
    links = (stated.get("intra_node_bytes_per_s"), stated.get("inter_node_bytes_per_s"))
    if any(links) or catalogue.accelerator_entry(_accelerator(stated)).slug != (
        group.accelerator.name
    ):
        return None
    if group.devices_per_node == per_node:
        return resolve_cluster(slug, nodes=nodes)
    if nodes == 1 and per_node < group.devices_per_node:
        return resolve_cluster(slug, gpus=per_node)
    return None


def _node_slug(node_id: Any) -> str | None:
    if node_id is None:
        return None
    text = str(node_id).lower()
    known = {slug.lower() for slug in catalogue.list_nodes()}
    tried = (text.removesuffix(tail) for tail in _SLUG_TAILS)
    return next((one for one in tried if one in known), None)


def _accelerator(stated: Record) -> str:
    """The slug of the accelerator: its name, or the one that starts with it."""
    name = str(stated.get("accelerator") or "").lower()
    slugs = catalogue.list_accelerators()
    if name in slugs:
        return name
    found = [slug for slug in slugs if name and slug.startswith(f"{name}-")]
    if len(found) != 1:
        raise InputError(f"{stated.get('accelerator')} is no accelerator of the catalogue")
    return found[0]


def _inline(stated: Record, nodes: int, per_node: int) -> HardwareProfile:
    text = f"{_accelerator(stated)}:{per_node}x{nodes}"
    if stated.get("memory_gib") is not None:
        text += f",memory={stated['memory_gib']}GiB"
    for name in ("intra", "inter"):
        rate = stated.get(f"{name}_node_bytes_per_s")
        if rate is not None and (name == "intra" or nodes > 1):
            text += f",{name}={rate!r}B/s"
    return resolve_cluster(text)


# Layouts

_SEARCHED = (
    "tp", "cp", "pp", "vpp", "dp", "ep", "etp", "micro_batch", "zero", "sequence_parallel",
    "recompute", "schedule",
)  # fmt: skip
_PASSED = ("num_microbatches", "zero_shard_degree", "expert_zero_shard_degree", "cp_kind",
           "reshard_after_forward", "rank_order", "compile", "loss_chunks")  # fmt: skip
_READ = {*_SEARCHED, *_PASSED, "stages", "offload", "chunked_loss", "recompute_modules"}


def fixed_choices(job: Job) -> dict[str, Any]:
    """What the layout fixes, as the planner takes it."""
    unknown = sorted(set(job.choices) - _READ)
    if unknown:
        raise InputError(f"the layout states {', '.join(unknown)}, which is not known")
    names = (*_SEARCHED, *_PASSED)
    fixed: dict[str, Any] = {name: job.choices[name] for name in names if name in job.choices}
    if job.choices.get("offload"):
        fixed["offload"] = job.choices["offload"]
    chunked = job.choices.get("chunked_loss")
    if chunked:
        fixed["loss_chunks"] = LOSS_CHUNKS if chunked is True else int(chunked)
    modules = job.choices.get("recompute_modules")
    if modules and fixed.get("recompute") == "selective":
        fixed["recompute"] = f"selective:{'+'.join(modules)}"
    counts = job.choices.get("stages")
    if counts is not None:
        fixed["stages"] = "/".join(f"{a}-{b}" for a, b in _ranges(counts))
    return fixed


def _ranges(counts: Any) -> list[tuple[int, int]]:
    """Layer ranges of stages from their counts."""
    if not isinstance(counts, list) or not all(isinstance(n, int) and n >= 0 for n in counts):
        raise InputError("the stages are no list of layer counts")
    stops = [sum(counts[: i + 1]) for i in range(len(counts))]
    return list(zip([0, *stops[:-1]], stops, strict=True))


def layouts_of(job: Job) -> list[Layout]:
    """The layout as stated, once for each way to spread layers that it leaves open: with embedding
    and head counted as a layer each, and without. What is open takes its plainest value.

    Raises:
        InputError: values that make no layout.
    """
    given = fixed_choices(job)
    given.pop("stages", None)
    pp, vpp = int(given.get("pp", 1)), int(given.get("vpp", 1))
    if pp > 1 and given.get("schedule") is None:
        given["schedule"] = "1f1b" if vpp == 1 else "interleaved-1f1b"
    given["offload"] = tuple(p for p in str(given.get("offload", "none")).split("+") if p != "none")
    policy, _, modules = str(given.get("recompute", "none")).partition(":")
    given["recompute"] = _recompute(policy, modules)
    if "dp" not in given:
        rest = int(given.get("tp", 1)) * int(given.get("cp", 1)) * pp
        given["dp"] = max(1, job.problem.world // rest)
    try:
        plain = Layout.of(job.model, job.training, **given)
        counts = job.choices.get("stages")
        if counts is not None:
            return [_with_stages(plain, _ranges(counts))]
        if vpp > 1 or pp == 1 or pp > job.problem.num_units:
            return [plain]
        bounds = even_boundaries(job.problem, pp)
        return [plain, Layout.of(job.model, job.training, boundaries=bounds, **given)]
    except ValidationError as error:
        raise InputError(f"the layout is none: {describe_misfits(error, most=2)}") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"the layout is none: {error}") from None


def _recompute(policy: str, modules: str) -> Recompute:
    value: dict[str, Any] = {"policy": policy}
    if modules:
        value["modules"] = tuple(modules.split("+"))
    return Recompute.model_validate(value)


def _with_stages(layout: Layout, ranges: Sequence[tuple[int, int]]) -> Layout:
    """The layout with these stages, whether or not they hold the model's layers."""
    if len(ranges) != layout.pp * layout.vpp:
        raise InputError(
            f"pp x vpp = {layout.pp * layout.vpp}, but {len(ranges)} stages are stated"
        )
    schedule = None if layout.schedule is None else ScheduleName(layout.schedule)
    starts = [start for start, _ in ranges]
    stages = place_stages(starts, ranges[-1][1], layout.pp, schedule)
    return layout.model_copy(update={"stages": stages})


def broken_rules(job: Job, layout: Layout) -> list[tuple[str, str]]:
    """Rules that the layout breaks, each with what is wrong."""
    found = layout.violations(job.model, job.profile.devices, job.training)
    return [(one.rule, str(one)) for one in found]


# Prices

_PRICED_ALL_THE_SAME = ("schedule_length",)
"""What a plan cannot write out can still be priced."""


def price(job: Job, time_limit_s: float | None) -> Priced | str:
    """The stated layout, or the planner's choice of what is open; why there is none, in words.

    A stated layout is priced even where it does not fit.

    Raises:
        ShardwrightError: a job that cannot be priced.
    """
    if job.is_open:
        return _planned(job, time_limit_s)
    layouts = layouts_of(job)
    broken = [
        text for rule, text in broken_rules(job, layouts[0]) if rule not in _PRICED_ALL_THE_SAME
    ]
    if broken:
        return f"breaks a rule: {broken[0]}"
    chosen = choose(job.stack, layouts)
    return priced(job, chosen.layout, chosen.prediction)


def priced(job: Job, layout: Layout, prediction: Prediction) -> Priced:
    """With what the host needs."""
    group = job.profile.devices.groups[0]
    host = max(job.stack.host_bytes(layout), default=0) * group.devices_per_node
    return Priced(layout, prediction, host, group.host_memory_bytes)


def _planned(job: Job, time_limit_s: float | None) -> Priced | str:
    constraints = Constraints(
        fixed=normalise_choices(fixed_choices(job)), top=1, time_limit_s=time_limit_s
    )
    found = search_stacks(job.problem, constraints, job.stack)
    if not found.ranking:
        proof = "" if found.certificate.optimal else " that was found in time"
        return f"nothing fits{proof}, of {found.certificate.considered:,} layouts"
    best = found.ranking[0]
    return priced(job, best.layout, best.prediction)


def on_devices(check: Record, num_devices: int) -> Record:
    """The check on another number of devices, in nodes of the same type; raises `InputError`."""
    cluster = check["cluster"]
    per_node = min(cluster["gpus_per_node"], num_devices)
    if num_devices % per_node:
        raise InputError(f"{num_devices} devices do not fill nodes of {per_node}")
    sizes = {"nodes": num_devices // per_node, "gpus_per_node": per_node}
    return {**check, "cluster": {**cluster, **sizes}}
