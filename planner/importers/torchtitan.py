"""Reads a torchtitan configuration: TOML of any release that has it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shardwright.planner.exporters.torchtitan.facts import CP_METHODS, SCHEDULES
from shardwright.planner.importers.assembling import layout_from_choices
from shardwright.planner.importers.reading import Reading
from shardwright.planner.importers.stated import stated_of
from shardwright.planner.importers.torchtitan_models import model_of_flavor, model_of_module
from shardwright.planner.layout_text import normalise_choices
from shardwright.planner.problem import ChoiceValue
from shardwright.specs import InputError, ModelSpec, OptimizerSpec, TrainingSpec
from shardwright.specs.plan import read_text

_OLD_PLACES = {
    ("parallelism", "data_parallel_shard_degree"): [
        ("training", "data_parallel_shard_degree"), ("training", "data_parallel_degree"),
    ],
    ("parallelism", "data_parallel_replicate_degree"): [
        ("training", "data_parallel_replicate_degree"),
    ],
    ("parallelism", "tensor_parallel_degree"): [("training", "tensor_parallel_degree")],
    ("parallelism", "pipeline_parallel_degree"): [("experimental", "pipeline_parallel_degree")],
    ("parallelism", "pipeline_parallel_schedule"): [("experimental", "pipeline_parallel_schedule")],
    ("parallelism", "pipeline_parallel_split_points"): [
        ("experimental", "pipeline_parallel_split_points"),
    ],
    ("parallelism", "pipeline_parallel_microbatches"): [
        ("experimental", "pipeline_parallel_microbatches"),
    ],
    ("parallelism", "context_parallel_degree"): [("experimental", "context_parallel_degree")],
    ("parallelism", "context_parallel_rotate_method"): [
        ("experimental", "context_parallel_rotate_method"),
    ],
    ("training", "local_batch_size"): [("training", "batch_size")],
    ("compile", "enable"): [("training", "compile")],
    ("lr_scheduler", "warmup_steps"): [("training", "warmup_steps")],
}  # fmt: skip
"""Where fields stood in releases of 2024 and 2025, by where they stand in 0.2.2."""

_SCHEDULE_NAMES = {name.lower(): ours for ours, name in SCHEDULES.items()}
_SINGLE = ("1f1b", "gpipe")
_DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}


class _Fields:
    """Fields of a configuration by table and name, with those of older releases."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self._tables = tables

    def get(self, table: str, name: str, default: Any = None) -> Any:
        for place in ((table, name), *_OLD_PLACES.get((table, name), ())):
            inner = self._tables.get(place[0])
            if isinstance(inner, dict) and place[1] in inner:
                return inner[place[1]]
        return default

    def count(self, table: str, name: str, default: int) -> int:
        """A whole number; raises `InputError` for anything else."""
        value = self.get(table, name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(
                f"{table}.{name} is {value!r}, not a whole number", fix="correct the configuration"
            )
        return value


def read_torchtitan(path: Path, *, world: int | None = None) -> Reading:
    """What a TOML file says of a job; ``world``: ranks, where the file leaves them open.

    Raises:
        InputError: the file is no TOML, or a field holds what it cannot.
    """
    try:
        tables = tomllib.loads(read_text(path, what="torchtitan"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(
            f"{path} is no TOML: {error}",
            why="torchtitan's own configuration is TOML, before release 0.3.0",
            fix="name a file such as train_configs/llama3_8b.toml",
        ) from None
    if not any(name in tables for name in ("model", "training", "parallelism")):
        raise InputError(
            f"{path} is no configuration of torchtitan: it has none of [model], [training] and"
            " [parallelism]",
            fix="name a file such as train_configs/llama3_8b.toml",
        )
    return _reading(_Fields(tables), tables, path, world)


def _reading(fields: _Fields, tables: Mapping[str, Any], path: Path, world: int | None) -> Reading:
    unread: list[str] = []
    conflicts: list[str] = []
    model = _model(fields, path, unread)
    degrees = _degrees(fields)
    ranks = _world(fields, degrees, world, conflicts)
    choices = _choices(fields, degrees, model, ranks, unread)
    dp = None if ranks is None else ranks // math.prod(degrees[n] for n in ("tp", "cp", "pp"))
    training = _training(fields, dp, unread)
    layout = layout_from_choices(model, training, choices, ranks)
    unread += _unread_tables(tables)
    return Reading(
        source=str(path),
        target="torchtitan",
        model=model,
        training=training,
        layout=layout,
        choices=choices,
        gpus=ranks,
        software="torchtitan",
        stated=stated_of(
            "torchtitan", choices=choices, model=model, training=training, layout=layout,
            world=ranks, consistent=not conflicts,
        ),
        unread=tuple(unread),
        conflicts=tuple(conflicts),
    )  # fmt: skip


def _model(fields: _Fields, path: Path, unread: list[str]) -> ModelSpec | None:
    name = str(fields.get("model", "name", "llama3"))
    flavor = str(fields.get("model", "flavor", "debugmodel"))
    module = str(fields.get("experimental", "custom_import", "") or "")
    known = model_of_flavor(name, flavor)
    if known is not None:
        return known
    if module:
        found, reason = model_of_module(path.parent / f"{module.replace('.', '/')}.py")
        if found is None:
            unread.append(f"model {name}: {reason or 'its sizes do not make a model'}")
        return found
    unread.append(f"model {name} {flavor} is none that is known here")
    return None


def _degrees(fields: _Fields) -> dict[str, int]:
    names = {
        "tp": "tensor_parallel_degree",
        "cp": "context_parallel_degree",
        "pp": "pipeline_parallel_degree",
        "ep": "expert_parallel_degree",
        "etp": "expert_tensor_parallel_degree",
        "replicate": "data_parallel_replicate_degree",
    }
    found = {name: fields.count("parallelism", given, 1) for name, given in names.items()}
    found["shard"] = fields.count("parallelism", "data_parallel_shard_degree", -1)
    for name, value in found.items():
        if value < 1 and not (name == "shard" and value == -1):
            raise InputError(
                f"a degree of the configuration is {value}", fix="give degrees of 1 and more"
            )
    return found


def _world(
    fields: _Fields, degrees: Mapping[str, int], given: int | None, conflicts: list[str]
) -> int | None:
    """Ranks in all: as the degrees say, or as given where one of them is open."""
    part = degrees["replicate"] * degrees["cp"] * degrees["tp"] * degrees["pp"]
    if degrees["shard"] == -1:
        if given is not None and given % part:
            conflicts.append(f"{given} ranks are not a multiple of {part}, the other degrees")
            return None
        return given
    stated = part * degrees["shard"]
    if given is not None and given != stated:
        conflicts.append(f"the degrees multiply to {stated} ranks, not {given}")
    return stated


def _choices(
    fields: _Fields,
    degrees: Mapping[str, int],
    model: ModelSpec | None,
    world: int | None,
    unread: list[str],
) -> dict[str, ChoiceValue]:
    tp, cp, pp = degrees["tp"], degrees["cp"], degrees["pp"]
    moe = model is not None and any(
        branch.body.kind == "moe" for layer in model.decoder.layers() for branch in layer.branches
    )
    given: dict[str, Any] = {"tp": tp, "cp": cp, "pp": pp, "sequence_parallel": tp > 1}
    if moe or degrees["ep"] > 1:
        # Without expert parallelism, tensor parallelism splits experts, too.
        given |= {"ep": degrees["ep"], "etp": degrees["etp"] if degrees["ep"] > 1 else tp}
    if cp > 1:
        kinds = {name: ours for ours, name in CP_METHODS.items()}
        method = str(fields.get("parallelism", "context_parallel_rotate_method", "allgather"))
        given["cp_kind"] = kinds.get(method, "all_gather")
    given["micro_batch"], count = _micro_batches(fields, degrees, world)
    if count is not None:
        given["num_microbatches"] = count
    given |= _sharding(fields, degrees, world)
    if not moe:
        given.pop("expert_zero_shard_degree", None)
    if fields.get("training", "enable_cpu_offload", False):
        given["offload"] = "optimizer+parameters"
    if fields.get("compile", "enable", False):
        given["compile"] = True
    if pp > 1:
        given |= _pipeline(fields, degrees, model, unread)
    given["recompute"] = _recompute(fields, given, model, unread)
    return normalise_choices(given)


def _micro_batches(
    fields: _Fields, degrees: Mapping[str, int], world: int | None
) -> tuple[int, int | None]:
    """Sequences of a pass, and passes of a step where these are known.

    With a pipeline the local batch is cut into micro-batches; without one they are accumulated.
    """
    local = fields.count("training", "local_batch_size", 8)
    part = degrees["tp"] * degrees["cp"] * degrees["pp"]
    dp = None if world is None else world // part
    batch = fields.count("training", "global_batch_size", -1)
    rounds = 1 if batch < 0 else None if dp is None else max(1, batch // (local * dp))
    if degrees["pp"] == 1:
        return local, rounds
    size = fields.count("parallelism", "pipeline_parallel_microbatch_size", 1)
    pieces = fields.get("parallelism", "pipeline_parallel_microbatches")
    if isinstance(pieces, int) and pieces > 0:
        size = max(1, local // pieces)
    return size, None if rounds is None else max(1, local // size) * rounds


def _sharding(fields: _Fields, degrees: Mapping[str, int], world: int | None) -> dict[str, Any]:
    """fully_shard is ZeRO 3 over the sharded replicas and cp."""
    part = degrees["tp"] * degrees["cp"] * degrees["pp"] * degrees["replicate"]
    shard = degrees["shard"]
    if shard == -1:
        if world is None:
            return {"zero": 3, "reshard_after_forward": _reshards(fields, degrees)}
        shard = world // part
    if shard * degrees["cp"] == 1:
        return {"zero": 0}
    found: dict[str, Any] = {"zero": 3, "reshard_after_forward": _reshards(fields, degrees)}
    if degrees["replicate"] > 1:
        ranks = shard * degrees["cp"]
        ep = degrees["ep"]
        etp = degrees["etp"] if ep > 1 else degrees["tp"]
        found["zero_shard_degree"] = ranks
        found["expert_zero_shard_degree"] = max(1, ranks * degrees["tp"] // (etp * ep))
    return found


def _reshards(fields: _Fields, degrees: Mapping[str, int]) -> bool:
    policy = fields.get("parallelism", "fsdp_reshard_after_forward", "default")
    return degrees["pp"] == 1 if policy == "default" else policy == "always"


def _pipeline(
    fields: _Fields, degrees: Mapping[str, int], model: ModelSpec | None, unread: list[str]
) -> dict[str, Any]:
    name = str(fields.get("parallelism", "pipeline_parallel_schedule", "1F1B"))
    if fields.get("parallelism", "pipeline_parallel_schedule_csv"):
        unread.append("the schedule is in a file of its own (pipeline_parallel_schedule_csv)")
    schedule = _SCHEDULE_NAMES.get(name.lower())
    if schedule is None:
        unread.append(f"schedule {name} has no counterpart here")
    pp, found = degrees["pp"], {"schedule": str(schedule)} if schedule else {}
    num_layers = None if model is None else model.decoder.num_layers
    stops = _stops(fields, pp, name, num_layers)
    usual = 1 if name.lower() in _SINGLE else 2
    vpp = usual if stops is None else max(1, len(stops) // pp)
    result: dict[str, Any] = {**found, "vpp": vpp}
    if stops is not None and len(stops) % pp == 0:
        result["stages"] = tuple(stops)
    elif stops is not None:
        unread.append(f"{len(stops)} stages are not a multiple of pp = {pp}")
    return result


def _stops(fields: _Fields, pp: int, schedule: str, num_layers: int | None) -> list[int] | None:
    """The layer after the last one of each virtual stage."""
    modules = fields.get("parallelism", "module_fqns_per_model_part")
    if isinstance(modules, list) and modules:
        return list(_running(len([m for m in part if str(m).startswith("layers.")])
                             for part in modules))  # fmt: skip
    points = fields.get("parallelism", "pipeline_parallel_split_points")
    if isinstance(points, str):
        points = [point for point in points.split(",") if point]
    if isinstance(points, list) and points and num_layers is not None:
        starts = [_layer_number(str(point), num_layers) for point in points]
        return [*starts, num_layers]
    if num_layers is None:
        return None
    first = fields.count("parallelism", "pipeline_parallel_first_stage_less_layers", 1)
    last = fields.count("parallelism", "pipeline_parallel_last_stage_less_layers", 1)
    each = fields.get("parallelism", "pipeline_parallel_layers_per_stage")
    single = schedule.lower() in _SINGLE
    if isinstance(each, int) and each > 0:
        num_stages = math.ceil((num_layers + first + last) / each)
    else:
        num_stages = pp * (1 if single else 2)
    return even_stops(num_stages, num_layers, first, last)


def _layer_number(point: str, num_layers: int) -> int:
    """Of ``layers.7``; the norm and the head come after the last layer."""
    number = point.rpartition(".")[2]
    return min(int(number), num_layers) if number.isdigit() else num_layers


def _running(counts: Iterator[int]) -> Iterator[int]:
    total = 0
    for count in counts:
        total += count
        yield total


def even_stops(num_stages: int, num_layers: int, first: int, last: int) -> list[int] | None:
    """As torchtitan spreads layers: the ends count as ``first`` and ``last`` layers more.

    None where it refuses: a stage would have nothing left for layers.
    """
    if num_stages < 1:
        return None
    each, extra = divmod(num_layers + first + last, num_stages)
    if num_stages > 1 and (each == 0 or first > each or last > each):
        return None
    counts = [each + (index < extra) for index in range(num_stages)]
    counts[0] -= first
    counts[-1] -= last
    return list(_running(iter(counts)))


def _recompute(
    fields: _Fields, given: Mapping[str, Any], model: ModelSpec | None, unread: list[str]
) -> str:
    mode = str(fields.get("activation_checkpoint", "mode", "selective"))
    option = str(fields.get("activation_checkpoint", "selective_ac_option", "2"))
    if mode in ("none", "full"):
        return mode
    if mode != "selective":
        unread.append(f"activation_checkpoint.mode {mode} has no counterpart here")
        return "none"
    if not option.isdigit() or int(option) == 0:
        unread.append(
            "recomputation by operator keeps attention and every second product; taken as that of"
            " norms and activations, the nearest here"
        )
        return "selective:norm+mlp_act" if _has_mlp(model) else "selective:norm"
    if model is None:
        unread.append(f"every {option}. layer is recomputed, of a model that is not known")
        return "full"
    stops = given.get("stages") or (model.decoder.num_layers,)
    sizes = [stop - start for start, stop in zip((0, *stops), stops, strict=False)]
    counts = [size // int(option) for size in sizes]
    return "/".join(f"full:{count}" if count else "none" for count in counts)


def _has_mlp(model: ModelSpec | None) -> bool:
    return model is not None and any(
        branch.body.kind == "mlp" for layer in model.decoder.layers() for branch in layer.branches
    )


def _training(fields: _Fields, dp: int | None, unread: list[str]) -> TrainingSpec | None:
    """Batch, sequence, precision and optimizer; None where the batch depends on open degrees."""
    batch = fields.count("training", "global_batch_size", -1)
    if batch < 0:
        if dp is None:
            return None
        batch = fields.count("training", "local_batch_size", 8) * dp
    lr = float(fields.get("optimizer", "lr", 8e-4))
    norm = float(fields.get("training", "max_norm", 1.0))
    optimizer = OptimizerSpec(
        name="adamw",
        learning_rate=lr,
        min_learning_rate=lr * float(fields.get("lr_scheduler", "min_lr_factor", 0.0)),
        beta1=float(fields.get("optimizer", "beta1", 0.9)),
        beta2=float(fields.get("optimizer", "beta2", 0.95)),
        epsilon=float(fields.get("optimizer", "eps", 1e-8)),
        weight_decay=float(fields.get("optimizer", "weight_decay", 0.1)),
        clip_norm=norm if 0 < norm < math.inf else None,
        warmup_steps=fields.count("lr_scheduler", "warmup_steps", 200),
        decay_steps=fields.get("lr_scheduler", "total_steps") or fields.get("training", "steps"),
    )
    if str(fields.get("optimizer", "name", "AdamW")) not in ("AdamW", "Adam"):
        unread.append(f"optimizer {fields.get('optimizer', 'name')} is taken as AdamW")
    return TrainingSpec(
        global_batch=batch,
        seq_len=fields.count("training", "seq_len", 2048),
        precision=_precision(fields, unread),
        optimizer=optimizer,
        seed=fields.get("debug", "seed") or fields.get("training", "seed") or 0,
    )


def _precision(fields: _Fields, unread: list[str]) -> str:
    converters = fields.get("model", "converters", []) or []
    if isinstance(converters, str):
        converters = converters.split(",")
    words = " ".join(map(str, converters))
    if "float8" in words or fields.get("float8", "enable_float8_linear", False):
        return "fp8-tensor"
    if "mx" in words:
        return "mxfp8"
    whole = _DTYPES.get(str(fields.get("training", "dtype", "float32")), "fp32")
    mixed = _DTYPES.get(str(fields.get("training", "mixed_precision_param", "bfloat16")))
    if mixed is None:
        unread.append("training.mixed_precision_param is no dtype that is known here")
    return "bf16-pure" if whole == "bf16" else mixed or "bf16"


_USED = frozenset({
    "job", "profiling", "metrics", "model", "optimizer", "lr_scheduler", "training", "parallelism",
    "checkpoint", "activation_checkpoint", "compile", "comm", "experimental", "debug",
    "validation", "memory_estimation", "float8", "quantize", "mx",
})  # fmt: skip


def _unread_tables(tables: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(set(tables) - _USED):
        yield f"table [{name}]"
    if isinstance(tables.get("fault_tolerance"), dict):
        yield "fault tolerance changes the number of replicas as it runs"
