"""Parts of a step as training software times them: passes, sums of gradients, update.

Software that prints such times (Megatron-LM's ``--timing-log-level``, DeepSpeed's
``wall_clock_breakdown``) tells apart causes that the step time alone adds up: computing fills the
passes, exposed sums of gradients are communication, the update is memory traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardwright.cost_models.stacks.step import StackModel, StageTimes
from shardwright.specs import Layout

PartName = Literal["step", "passes", "forward", "backward", "reduction", "update"]
"""``forward``, ``backward``: one rank's, of all micro-batches; ``passes``: the whole pipeline with
the sums of gradients; ``reduction``: what shows of these; ``update``: optimizer and the gathering
of new weights."""


@dataclass(frozen=True, slots=True)
class PartTime:
    """Seconds per step of a part, as measured."""

    name: PartName
    seconds: float
    of_last_rank: bool = False
    """Of the last pipeline rank; else of the one where it is longest."""


def part_seconds(
    model: StackModel, layout: Layout, name: PartName, *, of_last_rank: bool = False
) -> float:
    """What a part takes by the cost model."""
    if name == "step":
        return model.step_time_s(layout)
    stages = model.stage_times(layout)
    ranks = range(layout.pp - 1, layout.pp) if of_last_rank else range(layout.pp)
    rows = [_rank_parts(model, layout, stages, rank) for rank in ranks]
    if name == "passes":
        update_s = max(row["update"] for row in rows)
        return model.step_time_s(layout) - update_s - model.fixed_s(layout)
    return max(row[name] for row in rows)


def _rank_parts(
    model: StackModel, layout: Layout, stages: tuple[StageTimes, ...], rank: int
) -> dict[str, float]:
    own = [times for times, stage in zip(stages, layout.stages, strict=True) if stage.rank == rank]
    count = layout.micro_batches
    forward_s = sum(one.forward_s for one in own)
    reduction_s = model.exposed_s(
        sum(one.reduction_s for one in own), sum(one.window_s for one in own), gradients=True
    )
    publish_s = model.exposed_s(
        sum(one.publish_s for one in own), forward_s, gradients=False
    )  # fmt: skip
    return {
        "forward": count * forward_s,
        "backward": count * sum(one.backward_input_s + one.backward_weight_s for one in own),
        "reduction": reduction_s,
        "update": sum(one.optimizer_s for one in own) + publish_s,
    }
