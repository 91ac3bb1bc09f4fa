"""Which cost model prices a job: our own runtime's exact books, or a software stack's.

Our layers are described kernel by kernel and priced by curves that were measured where they run.
On hardware that is known from its catalogue entry alone, and for every other software, the step is
that of a `StackModel`.
"""

from __future__ import annotations

from shardwright.cost_models.stacks.step import StackModel
from shardwright.cost_models.step import StepModel
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.stacks import fitted, stack_facts, stack_parameters
from shardwright.specs import LayerBlock, ModelSpec, SoftwareSpec, TrainingSpec


def step_model(
    model: ModelSpec, training: TrainingSpec, profile: HardwareProfile, software: SoftwareSpec
) -> StepModel | StackModel:
    """The cost model of a job; both have ``predict(layout)``, ``memory(layout)``."""
    if is_own(profile, software):
        return StepModel(model, training, profile, software)
    return stack_model(model, training, profile, software)


def is_own(profile: HardwareProfile, software: SoftwareSpec) -> bool:
    """Whether our own layers run on hardware that they were measured on."""
    return bool(profile.curves) and software.framework == "shardwright"


def stack_model(
    model: ModelSpec, training: TrainingSpec, profile: HardwareProfile, software: SoftwareSpec
) -> StackModel:
    """The job on a software stack of the catalogue, or on customary software of today."""
    parameters = stack_parameters(software.framework, profile)
    if extrapolations(model, training, profile):
        widest = fitted().band_unmeasured
        for end, ratio in (("low", widest.low), ("high", widest.high)):
            furthest = min if end == "low" else max
            name = f"band.{end}_ratio"
            parameters[name] = furthest(parameters[name], ratio)
    return StackModel(model, usual_training(training, software), profile, software, parameters)


def usual_training(training: TrainingSpec, software: SoftwareSpec) -> TrainingSpec:
    """The training with what its software does where nothing is said."""
    usual = stack_facts(software.framework).defaults.gradient_dtype.get(training.precision)
    if training.gradient_dtype is not None or usual is None:
        return training
    return training.model_copy(update={"gradient_dtype": usual})


def extrapolations(
    model: ModelSpec, training: TrainingSpec, profile: HardwareProfile
) -> tuple[str, ...]:
    """What of a job lies beyond every run that the catalogue's numbers were fitted from, in words.

    Nothing for a profile that was measured or calibrated: it speaks for itself.
    """
    seen = fitted().seen
    if seen is None or profile.curves or profile.software is not None:
        return ()
    found = [
        f"{value:,} {what} (most seen: {most:,})"
        for value, most, what in (
            (profile.devices.num_devices, seen.num_gpus, "GPUs"),
            (training.seq_len, seen.seq_len, "tokens a sequence"),
            (model.decoder.hidden_size, seen.hidden_size, "of hidden size"),
        )
        if value > most
    ]
    unseen = sorted(body_kinds(model) - set(seen.blocks))
    return (*found, *(f"{kind.replace('_', ' ')} layers" for kind in unseen))


def body_kinds(model: ModelSpec) -> set[str]:
    """Kinds of blocks that a model's layers are made of, attention over both sides apart."""
    found = set()
    for tower in model.towers:
        for block in tower.blocks:
            if isinstance(block, LayerBlock):
                for branch in block.branches:
                    body = branch.body
                    is_causal = getattr(body, "causal", True) and not getattr(body, "cross", False)
                    found.add(body.kind if is_causal else f"bidirectional {body.kind}")
    return found
