"""Which cost model a job gets."""

from __future__ import annotations

import pytest

from shardwright.cost_models.pricing import extrapolations, stack_model, step_model
from shardwright.cost_models.stacks.step import StackModel
from shardwright.cost_models.step import StepModel
from shardwright.hardware_profiles.profile import Curve, Point
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.hardware_profiles.stacks import stack_facts
from shardwright.specs import Layout, SoftwareSpec, TrainingSpec
from shardwright.specs.sources import resolve_model
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


def test_what_no_run_reached_is_said_and_widens_the_band() -> None:
    model = resolve_model("llama-3.1-8b")
    training = TrainingSpec(global_batch=4096, seq_len=4096)
    near, far = resolve_cluster("dgx-h100:1"), resolve_cluster("dgx-h100:512")
    assert extrapolations(model, training, near) == ()
    assert "4,096 GPUs" in extrapolations(model, training, far)[0]
    software = stack_facts(None).software
    bands = []
    for profile in (near, far):
        layout = Layout.of(model, training, dp=profile.devices.num_devices, zero=3)
        prediction = stack_model(model, training, profile, software).predict(layout)
        low_s, high_s = prediction.step_time_band_s
        bands.append((low_s / prediction.step_time_s, high_s / prediction.step_time_s))
    assert bands[1][0] < bands[0][0] < 1 < bands[0][1] < bands[1][1]


def test_kinds_of_layers_that_no_run_had_are_named() -> None:
    training = TrainingSpec(global_batch=64, seq_len=512)
    profile = resolve_cluster("dgx-h100:1")
    (said,) = extrapolations(resolve_model("mamba2-2.7b"), training, profile)
    assert "state space" in said
    assert any(
        "bidirectional attention" in text
        for text in extrapolations(resolve_model("bert-base-uncased"), training, profile)
    )
