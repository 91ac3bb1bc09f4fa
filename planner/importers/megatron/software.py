"""Which of the known software stacks a set of Megatron-LM arguments belongs to."""

from __future__ import annotations

from shardwright.planner.importers.megatron.arguments import Arguments

_OLD = frozenset(
    ("DDP-impl", "checkpoint-activations", "activations-checkpoint-method", "model-parallel-size",
     "batch-size", "checkpoint-num-layers", "distribute-checkpointed-activations",
     "scaled-masked-softmax-fusion")
)  # fmt: skip
"""Options of releases before 3.0 (2022), which later ones do not take."""


def software_of(arguments: Arguments) -> str:
    """A name that ``stacks`` lists: the generation that takes these options."""
    if arguments.has("deepspeed"):
        return "megatron-deepspeed"
    if arguments.has("enable-zero-bubble") or arguments.has("zero-bubble-v-schedule"):
        return "zero-bubble-megatron"
    if arguments.given & _OLD:
        return "megatron-lm-2021"
    return "megatron-bridge"
