"""Which cost model a job gets."""

from __future__ import annotations

import pytest

from shardwright.cost_models.pricing import stack_model, step_model
from shardwright.cost_models.stacks.step import StackModel
from shardwright.cost_models.step import StepModel
from shardwright.hardware_profiles.profile import Curve, Point
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.specs import Layout, SoftwareSpec, TrainingSpec
from tests.cost_models.stacks.cases import small

MODEL = small()
TRAINING = TrainingSpec(global_batch=8, seq_len=64)
CATALOGUED = resolve_cluster("dgx-h100:1")
CURVE = Curve(
    quantity="flops", op="matmul", dtype="bf16",
    points=(Point(x=1.0, median_s=1.0, spread_s=0.0, n=1),),
)  # fmt: skip
MEASURED = CATALOGUED.model_copy(update={"curves": (CURVE,)})


def test_our_runtime_on_measured_hardware_is_priced_kernel_by_kernel() -> None:
    assert isinstance(step_model(MODEL, TRAINING, MEASURED, SoftwareSpec()), StepModel)


def test_our_runtime_on_hardware_known_from_its_data_sheet_is_a_stack() -> None:
    assert isinstance(step_model(MODEL, TRAINING, CATALOGUED, SoftwareSpec()), StackModel)


def test_other_software_is_a_stack_wherever_it_runs() -> None:
    for framework in ("megatron-bridge", "generic", "unheard of"):
        software = SoftwareSpec(framework=framework)
        assert isinstance(step_model(MODEL, TRAINING, MEASURED, software), StackModel)


@pytest.mark.parametrize(
    ("framework", "stated", "found"),
    [("megatron-lm-2021", None, "fp16"), ("megatron-lm-2021", "fp32", "fp32"),
     ("generic", None, "fp32")],
)  # fmt: skip
def test_gradients_are_in_the_dtype_that_the_stack_customarily_uses(
    framework: str, stated: str | None, found: str
) -> None:
    training = TrainingSpec.model_validate(
        {"global_batch": 8, "seq_len": 64, "precision": "fp16", "gradient_dtype": stated}
    )
    model = stack_model(MODEL, training, CATALOGUED, SoftwareSpec(framework=framework))
    assert model.training.dtypes.gradient == found


def test_both_models_answer_alike() -> None:
    layout = Layout.of(MODEL, TRAINING, dp=8)
    found = step_model(MODEL, TRAINING, CATALOGUED, SoftwareSpec()).predict(layout)
    assert found.step_time_s > 0
    assert len(found.memory) == 1
