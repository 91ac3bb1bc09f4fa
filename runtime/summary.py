"""`RunSummary`: what a run did, and how it compares with what the plan predicted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from shardwright.runtime.metrics import StepRecord
from shardwright.specs import Plan, Spec
from shardwright.specs.units import format_bytes, format_seconds

RUN_SCHEMA: Literal["shardwright.run/1"] = "shardwright.run/1"

WARM_UP_STEPS = 3
"""First steps of a process that are not timed: they allocate, connect and tune."""


class RankMemory(Spec):
    """Memory of one rank, in bytes; null = not measured on this kind of device."""

    rank: NonNegativeInt
    pp_rank: NonNegativeInt
    predicted_peak_bytes: NonNegativeInt
    """The plan's figure for the rank's pipeline rank, with its fixed part."""
    predicted_tensor_bytes: NonNegativeInt
    """The same without the fixed part: what is to be compared with live tensors."""
    live_tensor_bytes: NonNegativeInt | None
    """Most bytes of tensors alive at once in one step."""
    allocator_peak_bytes: NonNegativeInt | None
    """Peak of the device's allocator over the run."""
    resident_growth_bytes: NonNegativeInt | None
    """Growth of the process's resident set from before the model was built to the end."""


class RunSummary(Spec):
    """The result of a run."""

    schema_version: Literal["shardwright.run/1"] = RUN_SCHEMA
    model: str
    num_ranks: PositiveInt
    layout: str
    first_step: PositiveInt
    """First step that this process did; 1 unless resumed."""
    last_step: NonNegativeInt
    stopped_early: bool
    """Ended by a signal before all steps were done."""
    first_loss: float | None
    last_loss: float | None
    predicted_step_time_s: float
    predicted_step_time_band_s: tuple[float, float]
    measured_step_time_s: float | None
    """Median after the warm-up; null where too few steps ran."""
    num_timed_steps: NonNegativeInt
    tokens_per_s: float | None
    memory: tuple[RankMemory, ...]
    checkpoint: str | None
    metrics: str | None

    def as_text(self) -> str:
        """For people: losses, predicted and measured step time, and memory per rank."""
        return "\n".join(
            [*self._lines_of_training(), *self._lines_of_memory(), *self._lines_of_files()]
        )

    def _lines_of_training(self) -> list[str]:
        lines = [f"{self.model} on {self.num_ranks} ranks ({self.layout})"]
        if self.first_loss is not None and self.last_loss is not None:
            ended = ", stopped early by a signal" if self.stopped_early else ""
            lines.append(
                f"steps {self.first_step} to {self.last_step}{ended}: loss {self.first_loss:.4f} ->"
                f" {self.last_loss:.4f}"
            )
        low, high = map(format_seconds, self.predicted_step_time_band_s)
        predicted = f"{format_seconds(self.predicted_step_time_s)} ({low} to {high})"
        if self.measured_step_time_s is None:
            lines.append(f"step time: predicted {predicted}, too few steps to measure")
        else:
            error = self.predicted_step_time_s / self.measured_step_time_s - 1
            lines.append(
                f"step time: predicted {predicted}, measured"
                f" {format_seconds(self.measured_step_time_s)} (median of {self.num_timed_steps}),"
                f" prediction off by {error:+.1%}; {self.tokens_per_s:,.0f} tokens/s"
            )
        return lines

    def _lines_of_memory(self) -> list[str]:
        lines = ["rank  pp  stage, predicted  measured tensors      off  growth of the process"]
        for each in self.memory:
            measured = each.live_tensor_bytes or each.allocator_peak_bytes
            off = f"{each.predicted_tensor_bytes / measured - 1:+.1%}" if measured else ""
            growth = each.resident_growth_bytes
            lines.append(
                f"{each.rank:4}  {each.pp_rank:2}  {format_bytes(each.predicted_tensor_bytes):>17}"
                f"  {format_bytes(measured) if measured else 'not measured':>16}  {off:>7}"
                f"  {format_bytes(growth) if growth is not None else 'not measured':>21}"
            )
        return lines

    def _lines_of_files(self) -> list[str]:
        named = (("checkpoint", self.checkpoint), ("metrics", self.metrics))
        return [f"{name}: {path}" for name, path in named if path is not None]


def summarize(
    plan: Plan,
    records: Sequence[StepRecord],
    memory: Sequence[RankMemory],
    *,
    first_step: int,
    stopped_early: bool,
    checkpoint: str | None,
    metrics: str | None,
) -> RunSummary:
    """The summary of the steps that this process did."""
    timed = [record.step_time_s for record in records[WARM_UP_STEPS:]]
    measured = statistics.median(timed) if timed else None
    return RunSummary(
        model=plan.model.name,
        num_ranks=plan.layout.world,
        layout=layout_in_words(plan),
        first_step=first_step,
        last_step=records[-1].step if records else first_step - 1,
        stopped_early=stopped_early,
        first_loss=records[0].loss if records else None,
        last_loss=records[-1].loss if records else None,
        predicted_step_time_s=plan.prediction.step_time_s,
        predicted_step_time_band_s=plan.prediction.step_time_band_s,
        measured_step_time_s=measured,
        num_timed_steps=len(timed),
        tokens_per_s=None if measured is None else plan.training.tokens_per_step / measured,
        memory=tuple(memory),
        checkpoint=checkpoint,
        metrics=metrics,
    )


def layout_in_words(plan: Plan) -> str:
    """``tp 2, pp 2, dp 1, zero 0, micro-batch 4 x 2``."""
    layout = plan.layout
    sequence_parallel = " with sequence parallel" if layout.sequence_parallel else ""
    return (
        f"tp {layout.tp}{sequence_parallel}, pp {layout.pp}, dp {layout.dp}, zero {layout.zero},"
        f" {layout.micro_batches} micro-batches of {layout.micro_batch}"
    )
