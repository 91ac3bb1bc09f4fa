"""A user's measured steps as jobs that `learn` reads, and which of them belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwright.cost_models.pricing import usual_training
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import resized
from shardwright.hardware_profiles.stacks import device_key
from shardwright.planner.validation.clusters import accelerator_of
from shardwright.planner.validation.problem import Case
from shardwright.planner.validation.results import Job, Skip
from shardwright.planner.validation.rows import Row, RowMeasured
from shardwright.planner.validation.shapes import Assumptions
from shardwright.specs import InputError, Layout, ModelSpec, SoftwareSpec, TrainingSpec


@dataclass(frozen=True, slots=True)
class Selection:
    """Runs of one software on one kind of accelerator, and those that are left out."""

    jobs: tuple[Job, ...]
    skipped: tuple[Skip, ...]

    @property
    def software(self) -> SoftwareSpec:
        """Of most of the runs."""
        counts = Counter(job.case.software for job in self.jobs)
        return counts.most_common(1)[0][0]

    @property
    def home(self) -> HardwareProfile:
        """The cluster of most of the runs, of equals the largest."""
        counts = Counter(id(job.case.profile) for job in self.jobs)
        profiles = {id(job.case.profile): job.case.profile for job in self.jobs}
        best = max(counts, key=lambda key: (counts[key], profiles[key].devices.num_devices))
        return profiles[best]


def clusters_on(base: HardwareProfile) -> Callable[[Row, Assumptions], HardwareProfile]:
    """The cluster of a row that ran on as many of these nodes as it has devices."""
    sizes: dict[int, HardwareProfile] = {}

    def cluster_of(row: Row, assumed: Assumptions) -> HardwareProfile:
        stated, own = accelerator_of(row.hardware), base.devices.accelerator.name
        if stated is not None and stated != own:
            raise InputError(f"it ran on {stated}, not on the {own} of {base.devices.name}")
        count = assumed.take(row.num_gpus, base.devices.num_devices, "gpus")
        if count not in sizes:
            sizes[count] = resized(base, gpus=count)
        return sizes[count]

    return cluster_of


def job_of_step(
    *,
    name: str,
    model: ModelSpec,
    training: TrainingSpec,
    profile: HardwareProfile,
    software: SoftwareSpec,
    layout: Layout,
    step_time_s: float,
) -> Job:
    """One measured step of a layout that is known in full.

    Raises:
        InputError: the layout breaks a rule, or no such step can have been measured.
    """
    violations = layout.violations(model, profile.devices, training)
    if violations:
        raise InputError(
            f"{name} has an impossible layout: {violations[0]}", fix="give the layout that ran"
        )
    if not 0.0 < step_time_s <= 1e9:
        raise InputError(
            f"the step time of {name} is {step_time_s:g} s", fix="give the seconds of one step"
        )
    row = Row(id=name, stack=software.framework, measured=RowMeasured(iteration_time_s=step_time_s))
    training = usual_training(training, software)
    return Job(Case(row, model, training, profile, software, {}, ()), (layout,))


def is_measured(profile: HardwareProfile) -> bool:
    """Whether prices are those of our own runtime's operations, which `learn_measured` corrects."""
    return bool(profile.curves)


def require_formulas(profile: HardwareProfile) -> None:
    """Refuse a cluster whose prices are not those of a software stack.

    Raises:
        InputError: it holds curves of our own runtime's operations.
    """
    is_cpu = profile.devices.accelerator.vendor == "cpu"
    if not (profile.curves or is_cpu):
        return
    raise InputError(
        f"{profile.devices.name} is priced by operations of our own runtime that were measured"
        " there, which steps cannot correct",
        why="calibration fits the numbers of a software stack on a cluster known by its data sheet",
        fix="measure it again with `shardwright profile`, on a quiet machine",
    )


def select(items: Sequence[Job | Skip], stack: str | None) -> Selection:
    """The runs to learn from; ``stack``: of this software alone.

    Raises:
        InputError: none is left, or they are of several stacks or accelerators.
    """
    jobs: list[Job] = []
    skipped: list[Skip] = []
    for item in items:
        reason = item.reason if isinstance(item, Skip) else _why_not(item, stack)
        if reason is None and isinstance(item, Job):
            jobs.append(item)
        else:
            skipped.append(Skip(item.row, reason or ""))
    if not jobs:
        raise InputError(
            f"none of the {len(items)} runs can be learned from",
            why=f"the first: {skipped[0].row.id}: {skipped[0].reason}" if skipped else None,
            fix="give runs with their configuration and step time",
        )
    _require_one({job.case.software.framework for job in jobs}, "software stacks", "--stack NAME")
    _require_one(
        {device_key(job.case.profile.devices.accelerator) for job in jobs}, "accelerators",
        "--cluster C",
    )  # fmt: skip
    for job in jobs:
        if not is_measured(job.case.profile):
            require_formulas(job.case.profile)
    return Selection(tuple(jobs), tuple(skipped))


def _why_not(job: Job, stack: str | None) -> str | None:
    if job.row.is_oom:
        return "it ran out of memory"
    if job.row.kind != "training_run" or job.row.step_time_s is None:
        return "no step time was measured"
    if stack is not None and job.case.software.framework != stack:
        return f"it ran {job.case.software.framework}, not {stack}"
    return None


def _require_one(found: set[str], what: str, option: str) -> None:
    if len(found) > 1:
        raise InputError(
            f"the runs are of {len(found)} {what}: {', '.join(sorted(found))}",
            why="a profile speaks for one",
            fix=f"choose one with {option}",
        )
