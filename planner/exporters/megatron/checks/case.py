"""One command line of Megatron-LM with all that its rules look at."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from shardwright.planner.exporters.megatron.arguments import Arguments
from shardwright.planner.exporters.megatron.versions import MegatronVersion

Broken = tuple[str, str | None]
"""What is wrong with its numbers, and the nearest that would do."""

VPP_FLAGS = (
    "--num-layers-per-virtual-pipeline-stage",
    "--num-virtual-stages-per-pipeline-rank",
    "--pipeline-model-parallel-layout",
)
ENDS_FLAGS = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
ACCOUNT_FLAGS = (
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
)


@dataclass(frozen=True)
class Case:
    """Arguments, the world that they are started in, and the checkpoint that they load."""

    arguments: Arguments
    world: int
    environment: Mapping[str, str]
    capability: int | None
    """Major compute capability; None where it is not NVIDIA's."""
    version: MegatronVersion
    saved: Arguments | None = None
    """Arguments of the checkpoint behind ``--load``."""

    @cached_property
    def tp(self) -> int:
        return self.arguments.degree("--tensor-model-parallel-size")

    @cached_property
    def pp(self) -> int:
        return self.arguments.degree("--pipeline-model-parallel-size")

    @cached_property
    def cp(self) -> int:
        return self.arguments.degree("--context-parallel-size")

    @cached_property
    def ep(self) -> int:
        return self.arguments.degree("--expert-model-parallel-size")

    @cached_property
    def etp(self) -> int:
        """As large as tp where it is not given."""
        return self.arguments.number("--expert-tensor-parallel-size", self.tp) or 1

    @cached_property
    def gtp(self) -> int:
        """Ranks over which generalized tensor parallelism spreads each weight, beyond tp."""
        shards = self.arguments.number("--tensor-parallel-num-weight-shards", self.tp) or 1
        return max(1, shards // self.tp)

    @cached_property
    def egtp(self) -> int:
        shards = self.arguments.number("--expert-tensor-parallel-num-weight-shards", self.etp) or 1
        return max(1, shards // self.etp)

    @cached_property
    def dp(self) -> int:
        return max(1, self.world // (self.tp * self.pp * self.cp * self.gtp))

    @cached_property
    def edp(self) -> int:
        return max(1, self.world // (self.etp * self.ep * self.pp * self.egtp))

    @cached_property
    def vpp(self) -> int:
        """Virtual stages of a rank, as far as the options say."""
        stages = self.arguments.number("--num-virtual-stages-per-pipeline-rank")
        if stages is not None:
            return stages
        each = self.arguments.number("--num-layers-per-virtual-pipeline-stage")
        if each is not None:
            return max(1, self.num_layers // self.pp // each)
        layout = self.arguments.text("--pipeline-model-parallel-layout")
        return 1 if layout is None else max(1, self.num_layout_stages // self.pp)

    @cached_property
    def num_layout_stages(self) -> int:
        from shardwright.planner.exporters.megatron.stages import parse_layout_string

        layout = self.arguments.text("--pipeline-model-parallel-layout")
        try:
            return 0 if layout is None else len(parse_layout_string(layout))
        except ValueError:
            return 0

    @cached_property
    def num_layers(self) -> int:
        return self.arguments.number("--num-layers", 0) or 0

    @cached_property
    def hidden(self) -> int:
        return self.arguments.number("--hidden-size", 0) or 0

    @cached_property
    def heads(self) -> int:
        return self.arguments.number("--num-attention-heads", 0) or 0

    @cached_property
    def query_groups(self) -> int:
        grouped = self.has("--group-query-attention")
        return (self.arguments.number("--num-query-groups", 1) or 1) if grouped else self.heads

    @cached_property
    def seq_len(self) -> int:
        return self.arguments.number("--seq-length", 0) or 0

    @cached_property
    def micro_batch(self) -> int:
        return self.arguments.degree("--micro-batch-size")

    @cached_property
    def global_batch(self) -> int:
        default = self.micro_batch * self.dp * self.gtp
        return self.arguments.number("--global-batch-size", default) or default

    @cached_property
    def num_microbatches(self) -> int:
        return self.global_batch // (self.micro_batch * self.dp * self.gtp)

    @cached_property
    def num_experts(self) -> int:
        return self.arguments.number("--num-experts", 0) or 0

    @cached_property
    def dispatcher(self) -> str:
        return self.arguments.text("--moe-token-dispatcher-type", "allgather") or "allgather"

    @cached_property
    def recompute(self) -> str | None:
        if self.has("--recompute-activations"):
            return "selective"
        return self.arguments.text("--recompute-granularity")

    @cached_property
    def recompute_modules(self) -> tuple[str, ...]:
        return self.arguments.values("--recompute-modules")

    @cached_property
    def is_fsdp(self) -> bool:
        return self.has("--use-megatron-fsdp") or self.has("--use-torch-fsdp2")

    @cached_property
    def optimizer(self) -> str:
        return self.arguments.text("--optimizer", "adam") or "adam"

    @cached_property
    def checkpoint_format(self) -> str:
        return self.arguments.text("--ckpt-format", "torch_dist") or "torch_dist"

    @property
    def sequence_parallel(self) -> bool:
        return self.has("--sequence-parallel")

    @property
    def has_cuda_graphs(self) -> bool:
        return self.arguments.text("--cuda-graph-impl", "none") != "none"

    def has(self, flag: str) -> bool:
        return self.arguments.has(flag)


Rule = Callable[[Case], Iterator[Broken]]


def listed(text: str) -> list[object]:
    """A Python list in an option, ``[0.1, 0.2]`` or one value; empty where it cannot be read."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
