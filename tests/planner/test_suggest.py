"""What does not fit says by how much, and every suggestion fits when it is followed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.pricing import StepPricer
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.search import search
from shardwright.planner.suggest import first_fitting, reasons, suggestions
from shardwright.specs import Candidate, TrainingSpec
from shardwright.specs.sources import resolve_model
from tests.planner.conftest import tiny_model


def starved(
    usable_bytes: int, *, nodes: int = 1, seq_len: int = 64, global_batch: int = 8
) -> Problem:
    """A tiny model in fp32 on nodes of two devices with too little memory."""
    profile = resolve_cluster("dgx-h100", gpus=2 if nodes == 1 else None, nodes=None)
    (group,) = resolve_cluster("dgx-h100:2").devices.groups
    device = group.accelerator.model_copy(update={"usable_memory_bytes": usable_bytes})
    group = group.model_copy(
        update={
            "name": "own", "accelerator": device, "num_nodes": nodes, "devices_per_node": 2,
            "scale_up_domain_gpus": 2,
        }
    )  # fmt: skip
    no_buffers = tuple(p for p in profile.parameters if "communicator" not in p.name)
    devices = profile.devices.model_copy(update={"groups": (group,)})
    profile = profile.model_copy(update={"devices": devices, "parameters": no_buffers})
    training = TrainingSpec.model_validate(
        {"global_batch": global_batch, "seq_len": seq_len, "precision": "fp32"}
    )
    return Problem(tiny_model(6, hidden=64), training, profile)


def own_fitting(problem: Problem, constraints: Constraints) -> Candidate | None:
    return first_fitting(problem, constraints, StepPricer)


def test_reasons_name_the_bytes_of_the_layout_that_needs_least() -> None:
    problem = starved(10**6)
    pricer = StepPricer(problem)
    assert search(problem, Constraints(), pricer).ranking == ()
    (reason,) = reasons(problem, Constraints(), pricer)
    counts = re.findall(r"([\d,]+)(?: more than| bytes)", reason)
    needed, more, usable = (int(text.replace(",", "")) for text in counts[:3])
    assert needed - usable == more
    assert usable == 10**6
    for part in ("weights", "gradients", "optimizer state"):
        assert part in reason


@pytest.mark.parametrize("usable_bytes", [1_000_000, 1_400_000, 1_900_000])
def test_every_suggestion_fits_when_followed(usable_bytes: int) -> None:
    problem = starved(usable_bytes)
    constraints = Constraints()
    assert search(problem, constraints, StepPricer(problem)).ranking == ()
    found = suggestions(problem, constraints, own_fitting)
    assert found
    for suggestion in found:
        assert (suggestion.problem, suggestion.constraints) != (problem, constraints)
        result = search(suggestion.problem, suggestion.constraints, StepPricer(suggestion.problem))
        assert result.ranking, suggestion.text
        assert result.ranking[0].prediction.memory_verdict == "fits"


def test_fewer_nodes_than_suggested_do_not_fit() -> None:
    problem = starved(1_000_000)
    (nodes,) = (
        s for s in suggestions(problem, Constraints(), own_fitting) if " such nodes" in s.text
    )
    count = nodes.problem.cluster.groups[0].num_nodes
    assert count > 1
    fewer = nodes.problem.cluster.groups[0].model_copy(update={"num_nodes": count - 1})
    devices = problem.cluster.model_copy(update={"groups": (fewer,)})
    smaller = replace(problem, profile=problem.profile.model_copy(update={"devices": devices}))
    assert search(smaller, Constraints(), StepPricer(smaller)).ranking == ()


def test_what_was_forbidden_is_suggested_again() -> None:
    problem = starved(2_600_000, seq_len=64)
    free = Constraints()
    forbidding = Constraints(forbidden=frozenset({"recompute", "zero3", "tp", "pp"}))
    assert search(problem, free, StepPricer(problem)).ranking
    assert search(problem, forbidding, StepPricer(problem)).ranking == ()
    texts = [s.text for s in suggestions(problem, forbidding, own_fitting)]
    assert any(text.startswith("allow ") for text in texts), texts


def test_a_sequence_longer_than_the_model_allows_is_shortened() -> None:
    problem = starved(10**9, seq_len=80)
    pricer = StepPricer(problem)
    assert "exceeds the 64 positions" in reasons(problem, Constraints(), pricer)[0]
    texts = [s.text for s in suggestions(problem, Constraints(), own_fitting)]
    assert any(text.startswith("--seq-len 64:") for text in texts), texts


@pytest.mark.parametrize(
    ("model", "gpus", "wanted"),
    [
        ("llama-3-8b", 1, "--gpus 2: "),
        ("llama-2-70b", 1, "--cluster dgx-h100:3 (in place of --gpus or --nodes): "),
    ],
)
def test_a_part_of_a_node_grows_within_the_node_first(model: str, gpus: int, wanted: str) -> None:
    training = TrainingSpec.model_validate({"global_batch": 64, "seq_len": 4096})
    problem = Problem(resolve_model(model), training, resolve_cluster("dgx-h100", gpus=gpus))
    (found,) = (
        s for s in suggestions(problem, Constraints(), own_fitting) if s.text.startswith("--")
        and ("gpus" in s.text or "cluster" in s.text)
    )  # fmt: skip
    assert found.text.startswith(wanted)
    assert search(found.problem, Constraints(), StepPricer(found.problem)).ranking
