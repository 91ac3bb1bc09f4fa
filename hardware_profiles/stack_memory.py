"""What training software that others wrote keeps in device memory, where it differs.

``catalogue_data/stack_memory.json`` holds one entry per stack: facts that its documentation, its
source or its published runs show. A stack that is not listed keeps what `GENERIC` keeps.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from pydantic import Field

from shardwright.specs import Spec
from shardwright.specs.training import Precision

_DATA = Path(__file__).parent / "catalogue_data" / "stack_memory.json"

GENERIC = "generic"


class MemoryFacts(Spec):
    """What one stack keeps."""

    name: str
    context_bytes: int | None = Field(default=None, ge=0)
    """Device memory of a process's context with the PyTorch of its time; null = the profile's."""
    loss_bytes_per_logit: float = Field(default=10.0, gt=0)
    """Alive at once of a loss that is not fused: 2 for the logits, 4 in fp32, 4 for their softmax,
    and 4 more where its gradient does not take the softmax's place."""
    parallel_loss_bytes_per_logit: float | None = Field(default=None, gt=0)
    """The same where the vocabulary is shared over tensor-parallel ranks; null = as above."""
    gradient_copy_bytes: dict[Precision, float] = Field(default_factory=dict)
    """For each trained parameter, beside the gradient buffer and not sharded."""
    keeps_narrow_inputs: bool = False
    """fp8: inputs of products are kept in fp8, not in bf16."""
    narrow_weight_bytes: float = Field(default=0.0, ge=0)
    """fp8: copies of each weight beside the bf16 one, kept over the micro-batches of a step."""
    recomputes_operators: bool = False
    """Selective recomputation keeps attention's output and every second product's."""
    pipeline_keeps_units: bool = False
    """ZeRO 3 under pipeline parallelism gathers weights once a step, and sums whole gradients."""
    most_gathered_parameters: float | None = Field(default=None, gt=0)
    """ZeRO 3: parameters that are whole at once, gradients of half as many; null = two units."""
    reports_device_memory: bool = False
    """Published figures of unknown kind were read from the device."""
    source: str

    def loss_bytes(self, tp: int) -> float:
        """Alive for each logit of a rank at the loss's fullest moment."""
        parallel = self.parallel_loss_bytes_per_logit
        return self.loss_bytes_per_logit if tp == 1 or parallel is None else parallel


@functools.cache
def _facts() -> dict[str, MemoryFacts]:
    rows = json.loads(_DATA.read_text(encoding="utf-8"))
    return {row["name"]: MemoryFacts.model_validate_json(json.dumps(row)) for row in rows}


def list_memory_facts() -> list[str]:
    """Stacks of which something is known."""
    return sorted(_facts())


def memory_facts(name: str | None) -> MemoryFacts:
    """What a stack keeps; of one that is not listed, what is customary."""
    return _facts().get(name or GENERIC, _facts()[GENERIC])
