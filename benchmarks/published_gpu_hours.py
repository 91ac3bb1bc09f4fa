"""GPU-hours of eight published trainings against what the cost model and the money model say.

    python -m benchmarks.published_gpu_hours [--json]

Each training is decomposed: its model's FLOPs at the devices' peak; the steps as predicted, apart
the ramp of the batch; checkpoints, work done again and restarts (`cost_models.money`); and what is
left, which neither model knows: evaluation, other experiments, stretches run twice, waiting.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_hours_facts import HOUR_S, PUBLISHED, Phase, Published
from shardwright.cost_models.flops import model_flops_megatron
from shardwright.cost_models.money import Terms, goodput
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.hardware_profiles.scaled import scaled
from shardwright.planner import api
from shardwright.planner.layouts import layout_in_words
from shardwright.planner.question import Training, completed
from shardwright.specs import ModelSpec, Prediction
from shardwright.specs.sources import model_from_config, resolve_model

TIME_LIMIT_S = 60.0
CLOSE = 0.2
"""Within 20 %."""
WANTED = 6


@dataclass(frozen=True, slots=True)
class Decomposed:
    """GPU-hours of one training by where they go."""

    name: str
    published: float
    ideal: float
    """Model FLOPs (Megatron-LM's count) at the dense peak of the precision's matmuls."""
    steps: float
    """Predicted, at the full batch."""
    ramp: float
    """Predicted of phases whose batch or length still grows, beyond the full batch's pace."""
    failures: float
    """Checkpoints, work done again, restarts."""
    mfu: float
    layouts: tuple[str, ...]

    @property
    def predicted(self) -> float:
        return self.steps + self.ramp + self.failures

    @property
    def error(self) -> float:
        """Predicted over published, less one."""
        return self.predicted / self.published - 1


def decomposed(run: Published) -> Decomposed:
    """One training, priced phase by phase."""
    model = _model(run)
    ideal = steps = ramp = failures = 0.0
    layouts: dict[str, None] = {}
    pace = _priced(run, model, _main_phase(run))[0]
    full_hours_per_token = pace.step_time_s * _main_phase(run).gpus / _tokens(_main_phase(run))
    for phase in run.phases:
        prediction, layout = _priced(run, model, phase)
        layouts[layout] = None
        num_steps = phase.tokens / _tokens(phase)
        compute_s = num_steps * prediction.step_time_s
        hours = phase.gpus * compute_s / HOUR_S
        at_full = full_hours_per_token * phase.tokens / HOUR_S if phase.is_ramp else hours
        steps += at_full
        ramp += hours - at_full
        failures += hours * (1 / _share(run.terms, phase.gpus, compute_s) - 1)
        ideal += _ideal_hours(run, model, phase, num_steps)
    return Decomposed(
        run.name, run.gpu_hours, ideal, steps, ramp, failures, pace.mfu or 0.0, tuple(layouts)
    )


def _main_phase(run: Published) -> Phase:
    return max(run.phases, key=lambda phase: phase.tokens)


def _tokens(phase: Phase) -> int:
    return phase.global_batch * phase.seq_len


def _share(terms: Terms, gpus: int, compute_s: float) -> float:
    return goodput(gpus, terms, compute_s).fraction


def _model(run: Published) -> ModelSpec:
    if isinstance(run.model, str):
        return resolve_model(run.model)
    return model_from_config(run.model, name=run.name, source="published shape").spec


def _ideal_hours(run: Published, model: ModelSpec, phase: Phase, num_steps: float) -> float:
    training = Training(f"{phase.global_batch}", f"{phase.seq_len}", run.precision)
    profile = resolve_cluster(run.cluster, gpus=phase.gpus)
    spec = completed(model, profile, training=training, source=run.cluster).training
    peak = profile.devices.accelerator.peak_flops_per_s[spec.dtypes.matmul]
    flops = model_flops_megatron(model, spec)
    return num_steps * flops / peak / HOUR_S


def _priced(run: Published, model: ModelSpec, phase: Phase) -> tuple[Prediction, str]:
    """The step of a phase with its published layout, the rest as the planner would have it."""
    training = Training(f"{phase.global_batch}", f"{phase.seq_len}", run.precision)
    profile = resolve_cluster(run.cluster, gpus=phase.gpus)
    if phase.ran_in_memory:
        profile = scaled(profile, "memory", 2.0)
    asked = completed(
        model,
        profile,
        training=training,
        stack=run.stack,
        source=run.cluster,
    )
    given: dict[str, Any] = {
        "model": asked.model, "profile": asked.profile, "training": asked.training,
        "software": asked.software,
    }  # fmt: skip
    if phase.is_whole:
        answer = api.estimate(**given, layout=phase.layout)
    else:
        answer = api.plan(
            **given,
            fix=phase.layout,
            forbid=phase.forbid,
            top=1,
            time_limit_s=TIME_LIMIT_S,
            suggest=False,
        )
    if answer.plan is None:
        raise SystemExit(f"{run.name}: {'; '.join(answer.reasons)}")
    words = layout_in_words(answer.plan.layout).partition(",stages=")[0]
    return answer.plan.prediction, words


def num_close(rows: Sequence[Decomposed]) -> int:
    """How many lie within 20 % of what was published."""
    return sum(abs(row.error) <= CLOSE for row in rows)


def _line(row: Decomposed) -> str:
    parts = (row.ideal, row.steps, row.ramp, row.failures, row.predicted, row.published)
    cells = [f"{hours / 1e6:.3f}" for hours in parts]
    left = 1 - row.predicted / row.published
    return f"| {row.name} | {' | '.join(cells)} | {row.error:+.0%} | {row.mfu:.0%} | {left:+.0%} |"


def report(rows: Sequence[Decomposed]) -> str:
    """The table as Markdown."""
    return "\n".join(
        [
            "| training | ideal | steps | ramp | failures | predicted | published | error | MFU |"
            " left |",
            "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
            *map(_line, rows),
            "",
            f"{num_close(rows)} of {len(rows)} lie within {CLOSE:.0%} ({WANTED} are wanted)."
            " Million GPU-hours.",
            "",
            *(f"- {row.name}: {'; '.join(row.layouts)}" for row in rows),
            "",
        ]
    )


def main() -> None:
    """Print the table, or one JSON object."""
    rows = [decomposed(run) for run in PUBLISHED]
    if "--json" in sys.argv[1:]:
        found = [
            {
                "name": row.name, "published": row.published, "ideal": row.ideal,
                "steps": row.steps, "ramp": row.ramp, "failures": row.failures,
                "predicted": row.predicted, "error": row.error,
            }
            for row in rows
        ]  # fmt: skip
        sys.stdout.write(json.dumps({"trainings": found}, indent=2) + "\n")
    else:
        sys.stdout.write(report(rows))


if __name__ == "__main__":
    main()
