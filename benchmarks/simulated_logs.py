"""Training logs of machines whose numbers are hidden, priced by the cost model.

A machine's seven numbers are drawn from what is believed of its stack before any run. Its log has
50 lines in Megatron-LM's form, with the scatter of steps, a warm-up, a restart and checkpoints,
with or without timers. `learned_from` reads it as a user's log is read.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardwright.cost_models.pricing import stack_model, usual_training
from shardwright.cost_models.stacks.fit import Free
from shardwright.cost_models.stacks.parts import PartName, part_seconds
from shardwright.cost_models.stacks.step import StackModel
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.hardware_profiles.stacks import (
    device_key,
    fitted,
    stack_facts,
    stack_parameters,
)
from shardwright.planner.calibration.learn import Lesson, learn
from shardwright.planner.calibration.logs.jobs import Given, log_job
from shardwright.planner.calibration.logs.recognise import read_log_text
from shardwright.planner.calibration.profile import calibrated_profile
from shardwright.planner.layout_text import parse_choices
from shardwright.planner.question import Training
from shardwright.planner.validation.stack_fits import local_free
from shardwright.specs import Layout, ModelSpec, SoftwareSpec, TrainingSpec
from shardwright.specs.sources import read_model

NUM_LINES = 50
STEP_SCATTER = 0.01
TIMER_SCATTER = 0.03
WARM_UP_RATIO, RESTART_RATIO, CHECKPOINT_RATIO = 4.0, 2.5, 1.8
"""How much longer such steps take."""
TIMERS: Mapping[PartName, str] = {
    "forward": "forward-compute", "backward": "backward-compute", "reduction": "all-grads-sync",
    "update": "optimizer",
}  # fmt: skip

ANCHOR = "tp=2,zero=1,sp=on"
OTHERS: tuple[str, ...] = (
    "tp=1,zero=1", "tp=2,zero=3,mb=4,sp=on", "tp=8,zero=1,mb=4,sp=on", "tp=1,pp=4",
    "tp=4,pp=2,mb=4,sp=on", "tp=1,zero=2,mb=4", "tp=4,zero=1,sp=on", "tp=1,zero=3",
    "tp=8,pp=2,sp=on", "tp=2,pp=4,sp=on",
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """A stack on a cluster, with the numbers that it really has."""

    stack: str
    hidden: Mapping[str, float]
    cluster: str = "dgx-h100:2"
    model_name: str = "llama-3.1-8b"

    @cached_property
    def model(self) -> ModelSpec:
        return read_model(self.model_name).spec

    @cached_property
    def profile(self) -> HardwareProfile:
        return resolve_cluster(self.cluster)

    @cached_property
    def software(self) -> SoftwareSpec:
        return stack_facts(self.stack).software

    @cached_property
    def training(self) -> TrainingSpec:
        return usual_training(TrainingSpec(global_batch=128, seq_len=8192), self.software)

    @cached_property
    def truth(self) -> StackModel:
        values = stack_parameters(self.stack, self.profile) | dict(self.hidden)
        return StackModel(self.model, self.training, self.profile, self.software, values)

    def layout(self, text: str) -> Layout:
        """Of choices, with equally many layers to a stage."""
        choices: dict[str, Any] = dict(parse_choices(text))
        degrees = int(choices.get("tp", 1)) * int(choices.get("pp", 1))
        world = self.profile.devices.num_devices
        return Layout.of(self.model, self.training, dp=world // degrees, **choices)

    def errors(self, profile: HardwareProfile, layouts: Sequence[str] = OTHERS) -> list[float]:
        """Relative errors of a profile's predictions."""
        model = stack_model(self.model, self.training, profile, self.software)
        found = []
        for text in layouts:
            layout = self.layout(text)
            found.append(abs(model.step_time_s(layout) / self.truth.step_time_s(layout) - 1.0))
        return found


def beliefs(stack: str, cluster: str = "dgx-h100:2") -> list[Free]:
    """What is believed of the seven numbers before any run."""
    device = device_key(resolve_cluster(cluster).devices.accelerator)
    scopes = (f"stack:{stack}", f"device:{device}")
    return [one for scope in scopes for one in local_free(scope, fitted())]


def drawn_machine(stack: str, seed: int, **more: str) -> Machine:
    """A machine whose numbers are drawn from what is believed of them."""
    draw = random.Random(f"{stack} {seed}")
    known = beliefs(stack, **({"cluster": more["cluster"]} if "cluster" in more else {}))
    hidden = {
        one.name: one.value(one.scaled(one.centre) + draw.gauss(0.0, one.spread)) for one in known
    }
    return Machine(stack, hidden, **more)


def log_of(machine: Machine, layout_text: str = ANCHOR, *, seed: int = 0, timers: bool) -> str:
    """What the machine's training prints: `NUM_LINES` lines."""
    draw = random.Random(f"log {seed}")
    lines = list(_lines(machine, machine.layout(layout_text), draw, timers=timers))
    return "".join(f"{line}\n" for line in lines[:NUM_LINES])


def _lines(machine: Machine, layout: Layout, draw: random.Random, *, timers: bool) -> Iterator[str]:
    step_s = machine.truth.step_time_s(layout)
    parts_s = {name: part_seconds(machine.truth, layout, name) for name in TIMERS}
    batch = machine.training.global_batch
    restart = NUM_LINES // (6 if timers else 3)
    for iteration, ratio in _ratios(restart):
        time_ms = step_s * ratio * (1.0 + draw.gauss(0.0, STEP_SCATTER)) * 1e3
        yield (
            f" iteration {iteration:8d}/    1000 | consumed samples: {batch * iteration:12d} |"
            f" elapsed time per iteration (ms): {time_ms:.1f} | learning rate: 1.000E-05 |"
            f" global batch size: {batch:5d} | lm loss: {9 - iteration / 50:.6E} |"
            " loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 |"
        )
        if timers:
            shown = [
                f"{TIMERS[name]}: {s * ratio * (1.0 + draw.gauss(0.0, TIMER_SCATTER)) * 1e3:.2f}"
                for name, s in parts_s.items()
            ]  # fmt: skip
            yield f"time (ms) | {' | '.join(shown)}"


def _ratios(restart: int) -> Iterator[tuple[int, float]]:
    """Iterations with how much longer than usual each takes; a restart goes back three."""
    for iteration in range(1, restart + 1):
        spoilt = WARM_UP_RATIO if iteration == 1 else CHECKPOINT_RATIO if iteration == 7 else 1.0
        yield iteration, spoilt
    for later in range(NUM_LINES):
        spoilt = RESTART_RATIO if later == 0 else CHECKPOINT_RATIO if later == 9 else 1.0
        yield restart - 2 + later, spoilt


def learned_from(
    machine: Machine, text: str, layout_text: str = ANCHOR
) -> tuple[Lesson, HardwareProfile]:
    """What the log teaches whoever believes the catalogue."""
    training = machine.training
    given = Given(
        profile=machine.profile, model=machine.model, stack=machine.stack,
        choices=parse_choices(layout_text),
        training=Training(seq_len=str(training.seq_len), precision=str(training.precision)),
    )  # fmt: skip
    found = log_job(read_log_text(text), given)
    lesson = learn([found.job])
    profile = calibrated_profile(
        machine.profile, lesson, found.job.case.software, sources=["a simulated log"]
    )
    return lesson, profile


@dataclass(frozen=True)
class Case:
    """One machine before and after its log was read."""

    before: float
    """Mean error over `OTHERS`."""
    after: float
    inside: int
    """Of the seven numbers those inside their stated interval."""


def case_of(machine: Machine, layout_text: str = ANCHOR, *, seed: int = 0, timers: bool) -> Case:
    """Calibrate on the machine's log, and hold the result against the truth."""
    text = log_of(machine, layout_text, seed=seed, timers=timers)
    lesson, profile = learned_from(machine, text, layout_text)
    inside = sum(
        one.ends[0] <= machine.hidden[one.name] <= one.ends[1] for one in lesson.parameters
    )
    return Case(
        before=statistics.fmean(machine.errors(machine.profile)),
        after=statistics.fmean(machine.errors(profile)),
        inside=inside,
    )
