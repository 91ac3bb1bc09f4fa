"""Whether other software's own loaders accept exported files, and read from them what was planned.

    python -m benchmarks.exported_files [--jobs 40]

Needs an environment of its own, beside shardwright's dependencies:

    pip install torch accelerate deepspeed torchtitan==0.2.2 triton transformers megatron-core

What is absent is said and skipped. Nothing is started: DeepSpeed's `DeepSpeedConfig` is told the
world that torch.distributed would know, accelerate's launcher prepares the environment that its
FSDP plugin reads, Megatron Core builds its configurations and says which layers and ranks go where
(`exported_megatron`), torchtitan's `ConfigManager` parses, `ParallelDims` checks the degrees, and
its model is built without memory and counted.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.export_jobs import Draws, exported_jobs
from benchmarks.exported_megatron import check_megatron
from shardwright.planner.exporters.exported import Exported, Job

Check = Callable[[Job, Exported, Path], None]
PACKAGES = {
    "megatron-lm": "megatron.core",
    "deepspeed": "deepspeed",
    "accelerate": "accelerate",
    "torchtitan": "torchtitan",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    failed = 0
    for target, check in CHECKS.items():
        if not _is_there(PACKAGES[target]):
            _say(f"{target}: not installed, skipped")
            continue
        failed += run(target, check, given.jobs, given.seed)
    sys.exit(1 if failed else 0)


def run(target: str, check: Check, count: int, seed: int) -> int:
    """How many of ``count`` exports the target does not accept, or reads otherwise."""
    draws, bad, start_s = Draws(), 0, time.process_time()
    for index, (job, exported) in enumerate(exported_jobs(target, count, seed=seed, draws=draws)):
        with folder_of(exported) as folder:
            try:
                check(job, exported, folder)
            except Exception as error:
                bad += 1
                _say(f"  {target} {index} {job.model.name}: {type(error).__name__}: {error}")
    version = importlib.metadata.version(PACKAGES[target].replace(".", "-"))
    _say(
        f"{target} {version}: {count - bad} of {count} accepted; {draws.num_drawn} drawn,"
        f" {time.process_time() - start_s:.1f} s"
    )
    return bad


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a part of a package that is not there
        return False


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


@contextmanager
def folder_of(exported: Exported) -> Iterator[Path]:
    """The files on disk, for as long as they are looked at."""
    with tempfile.TemporaryDirectory() as name:
        for file, text in exported.files.items():
            (Path(name) / file).write_text(text, encoding="utf-8")
        yield Path(name)


def check_deepspeed(job: Job, _: Exported, folder: Path) -> None:
    config_module = importlib.import_module("deepspeed.runtime.config")
    tensor_module = importlib.import_module("deepspeed.runtime.tensor_parallel")
    dp = job.layout.world // job.layout.tp
    with (
        mock.patch.object(config_module.dist, "get_rank", return_value=0),
        mock.patch.object(config_module.dist, "get_world_size", return_value=dp),
    ):
        found = config_module.DeepSpeedConfig(str(folder / "ds_config.json"))
    _equal("batch", found.train_batch_size, job.training.global_batch)
    _equal("micro_batch", found.train_micro_batch_size_per_gpu, job.layout.micro_batch)
    _equal("accumulation", found.gradient_accumulation_steps, job.layout.num_microbatches)
    _equal("zero", int(found.zero_optimization_stage), job.layout.zero)
    _equal("bf16", found.bfloat16_config.enabled, job.training.dtypes.parameter == "bf16")
    zero = found.zero_config
    _equal("offload", zero.offload_optimizer is not None, "optimizer" in job.layout.offload)
    _equal("offload", zero.offload_param is not None, "parameters" in job.layout.offload)
    tensor = tensor_module.get_tensor_parallel_config(found._param_dict)
    _equal("tp", max(1, tensor.autotp_size), job.layout.tp)


def check_accelerate(job: Job, _: Exported, folder: Path) -> None:
    launch = importlib.import_module("accelerate.commands.launch")
    prepare = importlib.import_module("accelerate.utils.launch")
    classes = importlib.import_module("accelerate.utils.dataclasses")
    config = folder / "accelerate.yaml"
    arguments = launch.launch_command_parser().parse_args(
        ["--config_file", str(config), "train.py"]
    )
    with mock.patch("torch.cuda.device_count", return_value=8):
        arguments, _, _ = launch._validate_launch_command(arguments)
    _equal("processes", arguments.num_processes, job.layout.world)
    _equal("use_fsdp", bool(arguments.use_fsdp), job.layout.zero > 0)
    if not job.layout.zero:
        return
    environment = prepare.prepare_multi_gpu_env(arguments)
    # The first FSDP asks which device its modules start on; there is none here.
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(classes, "is_cuda_available", return_value=True),
        mock.patch("torch.cuda.current_device", return_value=0),
    ):
        plugin = classes.FullyShardedDataParallelPlugin()
        _check_plugin(job, plugin)
        if job.layout.zero_shard_degree < job.layout.dp:
            module = importlib.import_module("accelerate.parallelism_config")
            parallelism = module.ParallelismConfig()
            _equal("shards", parallelism.dp_shard_size, job.layout.zero_shard_degree)
            copies = job.layout.dp // job.layout.zero_shard_degree
            _equal("copies", parallelism.dp_replicate_size, copies)


def _check_plugin(job: Job, plugin: Any) -> None:
    layout = job.layout
    _equal("fsdp_version", plugin.fsdp_version, 2 if layout.zero == 3 else 1)
    if layout.zero == 3:
        _equal("reshard", plugin.reshard_after_forward, layout.reshard_after_forward)
    else:
        _equal("strategy", plugin.sharding_strategy.name, "SHARD_GRAD_OP")
    recomputes = all(entry.policy == "full" for entry in layout.recompute)
    _equal("recompute", plugin.activation_checkpointing, recomputes)
    first = getattr(plugin.cpu_offload, "offload_params", None)
    offloads = type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy" if first is None else first
    _equal("offload", offloads, bool(layout.offload))


def check_torchtitan(job: Job, _: Exported, folder: Path) -> None:
    config_module = importlib.import_module("torchtitan.config")
    dims_module = importlib.import_module("torchtitan.distributed.parallel_dims")
    layout = job.layout
    config = config_module.ConfigManager().parse_args(
        [f"--job.config_file={folder / 'train.toml'}"]
    )
    given = config.parallelism
    dims = dims_module.ParallelDims(
        dp_replicate=given.data_parallel_replicate_degree,
        dp_shard=given.data_parallel_shard_degree,
        cp=given.context_parallel_degree,
        tp=given.tensor_parallel_degree,
        pp=given.pipeline_parallel_degree,
        ep=given.expert_parallel_degree,
        etp=given.expert_tensor_parallel_degree,
        world_size=layout.world,
    )
    if layout.zero:
        _equal("shards", dims.dp_shard * dims.cp, layout.zero_shard_degree)
    _equal("sequence", job.training.seq_len % dims.seq_len_divisor, 0)
    local = config.training.local_batch_size
    pieces = local // given.pipeline_parallel_microbatch_size if layout.pp > 1 else 1
    rounds, rest = divmod(config.training.global_batch_size, local * layout.dp)
    _equal("batch", rest, 0)
    _equal("micro-batches", pieces * rounds, layout.num_microbatches)
    _check_titan_model(job, config, folder)


def _check_titan_model(job: Job, config: Any, folder: Path) -> None:
    """Its model, built without memory, has as many parameters, and all stages hold it once."""
    torch = importlib.import_module("torch")
    specs = importlib.import_module("torchtitan.protocols.train_spec")
    if config.experimental.custom_import:
        sys.path.insert(0, str(folder))
        sys.modules.pop(config.experimental.custom_import, None)
        specs._extra_train_specs.clear()
        importlib.invalidate_caches()
        importlib.import_module(config.experimental.custom_import)
        sys.path.pop(0)
    spec = specs.get_train_spec(config.model.name)
    arguments = spec.model_args[config.model.flavor]
    arguments.update_from_config(config)
    with torch.device("meta"):
        model = spec.model_cls(arguments)
    counted = {id(one): one.numel() for one in model.parameters()}
    # The balancing bias of experts is a buffer there.
    buffers = [one.numel() for name, one in model.named_buffers() if "expert_bias" in name]
    expected = job.model.num_parameters
    _equal("parameters", sum(counted.values()) + _balancing(job, buffers), expected)
    if job.layout.pp > 1:
        parts = config.parallelism.module_fqns_per_model_part
        names = [name for part in parts for name in part]
        layers = [f"layers.{number}" for number in range(job.model.decoder.num_layers)]
        _equal("modules", names, ["tok_embeddings", *layers, "norm", "output"])


def _balancing(job: Job, buffers: list[int]) -> int:
    """Numbers of the balancing biases, where the model counts them as parameters."""
    has = any(
        getattr(branch.body, "correction_bias", False)
        for layer in job.model.decoder.layers()
        for branch in layer.branches
    )
    return sum(buffers) if has else 0


def _equal(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise ValueError(f"{what} is {found}, not {expected}")


CHECKS: dict[str, Check] = {
    "megatron-lm": lambda job, exported, _: check_megatron(job, exported),
    "deepspeed": check_deepspeed,
    "accelerate": check_accelerate,
    "torchtitan": check_torchtitan,
}

if __name__ == "__main__":
    main()
