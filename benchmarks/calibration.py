"""How much better other layouts are predicted after a log of 50 steps was read.

    python -m benchmarks.calibration simulated
    python -m benchmarks.calibration here --profile profile.json [--layouts 7] [-o steps.json]
    python -m benchmarks.calibration here --profile profile.json --again steps.json

``simulated``: machines whose numbers are drawn from what is believed of four stacks
(`benchmarks.simulated_logs`). ``here``: our own runtime on two ranks of this machine, a tiny Llama,
layouts drawn with seed 0 from all valid ones and timed in turn (`benchmarks.local_layouts`). The 50
steps of a layout are its log; each layout's log is used in turn. The profile is one that was
measured before, at whatever load the machine had then: what has changed since is what the log must
tell. ``--stretch`` makes that change known: the profile of a machine that took so much longer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import local_layouts as local
from benchmarks.simulated_logs import ANCHOR, NUM_LINES, OTHERS, Case, case_of, drawn_machine
from shardwright.cost_models.step import StepModel
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.planner.calibration.learn import Lesson
from shardwright.planner.calibration.logs.jobs import Given, log_job
from shardwright.planner.calibration.logs.recognise import read_log_text
from shardwright.planner.calibration.measured import learn_measured
from shardwright.planner.calibration.profile import calibrated_profile
from shardwright.planner.layouts import named_choices
from shardwright.planner.problem import Problem
from shardwright.planner.question import Training
from shardwright.specs import Layout, SoftwareSpec, TrainingSpec
from shardwright.specs.sources import resolve_model

STACKS = ("generic", "torchtitan", "megatron-lm-2022", "megatron-bridge")
NUM_MACHINES = 25
TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1024,
    "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
TRAINING = TrainingSpec.model_validate({"global_batch": 8, "seq_len": 128, "precision": "fp32"})
ROUNDS = 10
"""In which the steps of every layout's log are timed."""


def simulated() -> Iterator[str]:
    """The table of the simulated machines."""
    yield f"{NUM_MACHINES} machines of each stack, a log of {NUM_LINES} lines of {ANCHOR}, mean"
    yield f"error on {len(OTHERS)} other layouts; numbers inside their stated 95 % intervals."
    yield ""
    yield "| stack | before | step time alone | inside | with timers | inside |"
    yield "|---|--:|--:|--:|--:|--:|"
    every: dict[bool, list[Case]] = {False: [], True: []}
    for stack in STACKS:
        machines = [drawn_machine(stack, seed) for seed in range(NUM_MACHINES)]
        found = {
            timers: [case_of(one, seed=i, timers=timers) for i, one in enumerate(machines)]
            for timers in (False, True)
        }
        for timers in (False, True):
            every[timers] += found[timers]
        yield _row(stack, found[False], found[True])
    yield _row("all", every[False], every[True])


def _row(name: str, alone: Sequence[Case], timed: Sequence[Case]) -> str:
    before = statistics.fmean(case.before for case in alone)
    cells = []
    for cases in (alone, timed):
        after = statistics.fmean(case.after for case in cases)
        inside = statistics.fmean(case.inside for case in cases) / 7
        cells += [f"{after:.1%} ({after / before:.2f})", f"{inside:.0%}"]
    return f"| {name} | {before:.1%} | {' | '.join(cells)} |"


def times_here(layouts: Sequence[Layout], model: Path, path: Path | None) -> list[list[float]]:
    """The steps of each layout's log, all layouts in turn."""
    found = local.measure(list(layouts), 2, ROUNDS, NUM_LINES // ROUNDS, model, TRAINING)
    times = [one.step_times_s for one in found]
    if path is not None:
        path.write_text(json.dumps(times), encoding="utf-8")
    return times


def log_text(layout: Layout, times: Sequence[float]) -> str:
    """The records that our runtime writes of such steps."""
    tokens = TRAINING.tokens_per_step
    rows = [
        {"step": i, "loss": 1.0, "grad_norm": 1.0, "learning_rate": 1e-4, "step_time_s": time,
         "tokens_per_s": tokens / time}
        for i, time in enumerate(times, start=1)
    ]  # fmt: skip
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def learned(
    problem: Problem, layout: Layout, times: Sequence[float]
) -> tuple[Lesson, HardwareProfile]:
    """What the log of a layout teaches the profile."""
    training = Training(
        global_batch=str(problem.training.global_batch), seq_len=str(problem.training.seq_len),
        precision=str(problem.training.precision),
    )  # fmt: skip
    given = Given(problem.profile, problem.model, training, named_choices(layout))
    found = log_job(read_log_text(log_text(layout, times)), given)
    lesson = learn_measured([found.job], problem.profile)
    return lesson, calibrated_profile(
        problem.profile, lesson, SoftwareSpec(), sources=["a log of this machine"]
    )


def errors(
    problem: Problem, profile: HardwareProfile, layouts: Sequence[Layout],
    times: Sequence[Sequence[float]],
) -> list[float]:  # fmt: skip
    """Predicted over measured median, less 1."""
    model = StepModel(problem.model, problem.training, profile, problem.software)
    return [
        model.predict(layout).step_time_s / statistics.median(steps) - 1.0
        for layout, steps in zip(layouts, times, strict=True)
    ]


def here(profile: HardwareProfile, layouts: Sequence[Layout], times: Sequence[Sequence[float]],
         problem: Problem) -> Iterator[str]:  # fmt: skip
    """What the first layout's log teaches of the others, then each one's as the log."""
    lesson, after = learned(problem, layouts[0], times[0])
    before_all, after_all = (errors(problem, p, layouts, times) for p in (profile, after))
    yield "| layout | steps | measured s | before | after |"
    yield "|---|--:|--:|--:|--:|"
    for layout, steps, old, new in zip(layouts, times, before_all, after_all, strict=True):
        middle = statistics.median(steps)
        yield (
            f"| {local.name_of(layout)} | {len(steps)} | {middle:.3f} | {old:+.1%} | {new:+.1%} |"
        )
    yield ""
    for one in lesson.parameters:
        low, high = one.ends
        yield f"- {one.name}: {one.before:.3f} to {one.after:.3f} (95 %: {low:.3f} to {high:.3f})"
    yield ""
    yield "| log of | mean error on the others before | after | ratio |"
    yield "|---|--:|--:|--:|"
    for index, layout in enumerate(layouts):
        _, taught = learned(problem, layout, times[index])
        others = [i for i in range(len(layouts)) if i != index]
        pair = []
        for known in (profile, taught):
            found = errors(problem, known, layouts, times)
            pair.append(statistics.fmean(abs(found[i]) for i in others))
        yield (
            f"| {local.name_of(layout)} | {pair[0]:.1%} | {pair[1]:.1%} | {pair[1] / pair[0]:.2f} |"
        )


def stretched(profile: HardwareProfile, ratio: float) -> HardwareProfile:
    """The profile as a machine that takes ``ratio`` times as long for everything would give it."""
    curves = tuple(
        curve.model_copy(
            update={
                "points": tuple(p._replace(median_s=p.median_s * ratio) for p in curve.points)
            }
        )
        for curve in profile.curves
    )  # fmt: skip
    return profile.model_copy(update={"curves": curves})


def _here(options: argparse.Namespace) -> Iterator[str]:
    profile = stretched(local.load_or_measure_profile(options.profile, 2), options.stretch)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "config.json"
        model.write_text(json.dumps(TINY), encoding="utf-8")
        problem = Problem(resolve_model(str(model)), TRAINING, profile, SoftwareSpec())
        layouts = local.draw_layouts(problem, options.layouts)
        times = (
            times_here(layouts, model, options.out)
            if options.again is None
            else json.loads(options.again.read_text(encoding="utf-8"))
        )
        yield from here(profile, layouts, times, problem)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("simulated")
    local_parser = commands.add_parser("here")
    local_parser.add_argument("--profile", type=Path, required=True)
    local_parser.add_argument("--layouts", type=int, default=7)
    local_parser.add_argument("--again", type=Path, help="steps of an earlier call")
    local_parser.add_argument(
        "--stretch", type=float, default=1.0, help="all times of the profile, before it is used"
    )
    local_parser.add_argument("-o", "--out", type=Path, help="keep the steps here")
    options = parser.parse_args()
    if options.command == "simulated":
        lines: Iterator[str] = simulated()
    else:
        lines = _here(options)
    for line in lines:
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
