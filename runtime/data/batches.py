"""`BatchSource`: the micro-batches of one data-parallel rank, whatever the layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from shardwright.runtime.data.samples import SampleSource, shuffled_index
from shardwright.specs import Layout, TrainingSpec

IGNORED_LABEL = -100
"""A label that takes no part in the loss."""

MicroBatch = tuple[torch.Tensor, torch.Tensor]
"""(tokens, labels), each [B, T] int64; labels[b, t] is the token that follows tokens[b, t]."""


@dataclass(frozen=True, slots=True)
class BatchSource:
    """Cuts the global batch of each step for one rank.

    Step s (from 0) trains samples [s G, (s + 1) G) of the shuffled order, G being the global batch.
    Micro-batch m of data-parallel rank d is that batch's slice [(m dp + d) mb, (m dp + d + 1) mb):
    the samples of a step, and their order over micro-batches, do not depend on the layout.
    """

    samples: SampleSource
    seed: int
    global_batch: int
    micro_batch: int
    num_micro_batches: int
    dp: int
    dp_rank: int

    @classmethod
    def of(
        cls, samples: SampleSource, training: TrainingSpec, layout: Layout, dp_rank: int
    ) -> BatchSource:
        return cls(
            samples=samples,
            seed=training.seed,
            global_batch=training.global_batch,
            micro_batch=layout.micro_batch,
            num_micro_batches=layout.micro_batches,
            dp=layout.dp,
            dp_rank=dp_rank,
        )

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """The micro-batches of step ``step`` in schedule order."""
        return [self._micro_batch(step, number) for number in range(self.num_micro_batches)]

    def _micro_batch(self, step: int, number: int) -> MicroBatch:
        first = step * self.global_batch + (number * self.dp + self.dp_rank) * self.micro_batch
        count = self.samples.num_samples
        rows = [
            self.samples.sample(shuffled_index(position, count, self.seed))
            for position in range(first, first + self.micro_batch)
        ]
        windows = torch.from_numpy(np.stack(rows))
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
