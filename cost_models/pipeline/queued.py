"""1F1B over slow links: messages between two stages wait for each other, one behind the other.

`fast.pipeline_times` lets messages overtake nothing but also never queue, which is right where
links are idle most of the time. Between sites a message may take longer than a stage computes; then
the link is what limits the step.

Wave j runs micro-batch j on the last stage. Stage r, with w = pp - 1 - r stages after it, runs the
forward of micro-batch j + w in it and then the backward of micro-batch j: that is 1F1B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueuedTimes:
    """One step, from the common start of all stages."""

    end_s: tuple[float, ...]
    """When each stage's last backward is over."""
    busy_s: tuple[float, ...]
    """How long each stage computes."""


def queued_times(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    message_s: Sequence[float],
    num_micro_batches: int,
) -> QueuedTimes:
    """How long a step of 1F1B takes.

    ``forward_s``, ``backward_s``: of each stage for one micro-batch. ``message_s``: of each of the
    pp - 1 links, which is busy for so long with each message; its two directions do not disturb
    each other.
    """
    pp, m = len(forward_s), num_micro_batches
    free_s = [0.0] * pp
    down_s = [0.0] * pp  # when the last forward message reached the stage
    up_s = [0.0] * pp  # when the last backward message reached the stage
    arrived: list[list[float]] = [[0.0] * m for _ in range(pp)]
    for wave in range(1 - pp, m):
        for r in range(pp):
            micro = wave + pp - 1 - r
            if not 0 <= micro < m:
                continue
            end_s = max(free_s[r], arrived[r][micro]) + forward_s[r]
            free_s[r] = end_s
            if r + 1 < pp:
                down_s[r + 1] = max(down_s[r + 1], end_s) + message_s[r]
                arrived[r + 1][micro] = down_s[r + 1]
        if wave < 0:
            continue
        for r in reversed(range(pp)):
            gradient_s = 0.0 if r + 1 == pp else up_s[r]
            end_s = max(free_s[r], gradient_s) + backward_s[r]
            free_s[r] = end_s
            if r:
                up_s[r - 1] = max(up_s[r - 1], end_s) + message_s[r - 1]
    busy_s = tuple(m * (f + b) for f, b in zip(forward_s, backward_s, strict=True))
    return QueuedTimes(tuple(free_s), busy_s)
