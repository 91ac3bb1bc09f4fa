"""Variables, and generations of devices."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.catalogue import accelerator, list_accelerators
from shardwright.planner.exporters.megatron.environment import CONNECTIONS, compute_capability
from tests.planner.exporters.megatron.exporting import exported


@pytest.mark.parametrize(
    ("slug", "major"),
    [("v100-sxm2-32gb", 7), ("a100-sxm4-80gb", 8), ("l40s-48gb", 8), ("h100-sxm5-80gb", 9),
     ("b200-sxm-180gb", 10), ("gb200-186gb", 10), ("rtx-5090-32gb", 12), ("mi300x-192gb", None)],
)  # fmt: skip
def test_generations(slug: str, major: int | None) -> None:
    assert compute_capability(slug) == major


def test_every_nvidia_device_of_the_catalogue_has_one_and_no_other() -> None:
    for slug in list_accelerators():
        is_nvidia = accelerator(slug).vendor.lower() == "nvidia"
        assert (compute_capability(slug) is not None) == is_nvidia, slug


def test_tensor_and_context_parallelism_ask_for_one_connection() -> None:
    assert exported(tp=2).environment[CONNECTIONS] == "1"
    assert exported(cp=2).environment[CONNECTIONS] == "1"
    assert CONNECTIONS not in exported(dp=8).environment


def test_the_plans_own_variables_stay_unless_they_are_refused() -> None:
    found = exported(tp=2, environment={"NCCL_DEBUG": "WARN", CONNECTIONS: "4"})
    assert found.environment == {"NCCL_DEBUG": "WARN", CONNECTIONS: "1"}
    assert any("instead of the plan's 4" in note for note in found.notes)
