"""`SoftwareSpec`: what software runs the model. Its numbers live in a profile, not here."""

from __future__ import annotations

from typing import Literal

from shardwright.specs._base import Spec
from shardwright.specs.training import Precision


class SoftwareSpec(Spec):
    """The choices of software that change what a step costs."""

    framework: str = "shardwright"
    """Whose layers run: ours, or another stack's generation such as ``megatron-core``."""
    attention_kernel: Literal["flash", "flash-2", "flash-1", "math"] = "flash"
    """``flash``: a fused kernel that never stores the score matrix, the newest for the hardware;
    ``flash-1``, ``flash-2``: that generation of it; ``math``: products around a softmax."""
    fused_sinks: bool = True
    """Whether that kernel also takes attention sinks; else such layers store their scores."""
    fused_kernels: bool = True
    """Norms, rotations and activations run in kernels of their own, not operator by operator."""
    compile: bool = False
    """A compiler fuses what hand-written kernels do not."""
    cuda_graphs: bool = False
    fused_optimizer: bool = True
    fused_accumulation: bool = True
    """The products that make weight gradients add them to the buffer; else a kernel of its own
    does, after each micro-batch."""
    fused_loss: bool = False
    """The loss works on the logits in place, in their own dtype."""
    dropout: bool = False
    """Dropout runs after scores, attention and MLP, and keeps its masks."""
    early_stop: bool = False
    """Recomputation of a layer ends once all that its backward needs is there: the layer's last
    product is not run again (PyTorch's checkpoint without reentrance, from release 2.1)."""
    overlap_gradients: bool = True
    """Gradients are reduced while the last backward still runs."""
    overlap_weights: bool = True
    """Updated weights are gathered while the next forward already runs."""
    overlap_tensor_parallel: bool = False
    """Under sequence parallelism, gathering and scattering run piece by piece beside the products
    around them (Transformer Engine's user buffers; asynchronous tensor parallelism)."""
    overlap_tensor_parallel_except: tuple[Precision, ...] = ()
    """Precisions in which they do not, though ``overlap_tensor_parallel`` says so."""
    overlap_messages: bool = True
    """Pipeline messages travel while stages compute."""
    scatter_messages: bool = False
    """Tensor-parallel ranks that hold the same hidden states each send a part of a pipeline
    message, which is gathered again where it arrives."""
    allocator: Literal["native", "expandable_segments"] = "native"
    lacks: tuple[str, ...] = ()
    """What layouts of this software cannot have, by the names that ``--forbid`` takes: planning
    leaves it out unless it is fixed."""

    def overlaps_tensor_parallel(self, precision: Precision) -> bool:
        """Whether gathering and scattering run beside the products around them."""
        return self.overlap_tensor_parallel and precision not in self.overlap_tensor_parallel_except
