"""Which cost model prices a job: our own runtime's exact books, or a software stack's.

Our layers are described kernel by kernel and priced by curves that were measured where they run.
On hardware that is known from its catalogue entry alone, and for every other software, the step is
that of a `StackModel`.
"""

from __future__ import annotations

from shardwright.cost_models.stacks.step import StackModel
from shardwright.cost_models.step import StepModel
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.stacks import stack_facts, stack_parameters
from shardwright.specs import ModelSpec, SoftwareSpec, TrainingSpec


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
    return StackModel(model, usual_training(training, software), profile, software, parameters)


def usual_training(training: TrainingSpec, software: SoftwareSpec) -> TrainingSpec:
    """The training with what its software does where nothing is said."""
    usual = stack_facts(software.framework).defaults.gradient_dtype.get(training.precision)
    if training.gradient_dtype is not None or usual is None:
        return training
    return training.model_copy(update={"gradient_dtype": usual})
