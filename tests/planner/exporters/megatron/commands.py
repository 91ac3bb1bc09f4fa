"""A command line of Megatron-LM that obeys every rule, and what one change makes of it."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.planner.exporters.megatron.arguments import Arguments
from shardwright.planner.exporters.megatron.checks.rules import broken_argument_rules
from shardwright.planner.exporters.megatron.versions import version_of

DENSE = (
    "--num-layers 12", "--hidden-size 1024", "--num-attention-heads 16",
    "--group-query-attention", "--num-query-groups 4", "--ffn-hidden-size 4096",
    "--max-position-embeddings 4096", "--seq-length 4096", "--micro-batch-size 1",
    "--global-batch-size 64", "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2",
    "--sequence-parallel", "--bf16", "--position-embedding-type rope", "--disable-bias-linear",
    "--train-iters 100", "--lr 0.0003", "--min-lr 3e-05", "--mock-data",
)  # fmt: skip
EXPERTS = (
    *DENSE, "--num-experts 8", "--moe-router-topk 2", "--expert-model-parallel-size 4",
    "--expert-tensor-parallel-size 1", "--moe-token-dispatcher-type alltoall", "--moe-grouped-gemm",
)  # fmt: skip
WORLD = 16
CONNECTIONS = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def broken(
    *changes: str,
    base: tuple[str, ...] = DENSE,
    without: tuple[str, ...] = (),
    world: int = WORLD,
    environment: Mapping[str, str] = CONNECTIONS,
    capability: int | None = 9,
    version: str = "main",
    saved: tuple[str, ...] | None = None,
) -> set[int]:
    """Numbers of the rules that the base breaks once ``changes`` replace or join its lines."""
    flags = {line.split()[0] for line in changes} | set(without)
    kept = [line for line in base if line.split()[0] not in flags]
    found = broken_argument_rules(
        Arguments.of(*kept, *changes), world=world, environment=environment,
        capability=capability, version=version_of(version),
        saved=None if saved is None else Arguments.of(*saved),
    )  # fmt: skip
    return {int(one.rule.removeprefix("megatron-")) for one in found}
