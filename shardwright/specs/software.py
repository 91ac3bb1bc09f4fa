"""`SoftwareSpec`: what software runs the model. Its numbers live in a profile, not here."""

from __future__ import annotations

from typing import Literal

from shardwright.specs._base import Spec


class SoftwareSpec(Spec):
    """The choices of software that change what a step costs."""

    framework: str = "shardwright"
    """Whose layers run: ours, or another stack's generation such as ``megatron-core-0.15``."""
    attention_kernel: Literal["flash", "math"] = "flash"
    """``flash``: the fused kernel that never stores the score matrix."""
    compile: bool = False
    cuda_graphs: bool = False
    fused_optimizer: bool = True
    allocator: Literal["native", "expandable_segments"] = "native"
