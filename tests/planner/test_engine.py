"""Each problem goes to the search that fits it, and both speak alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner import engine as engine_module
from shardwright.planner.engine import OwnEngine, StackEngine, engine_for, software_of
from shardwright.planner.layouts import layout_of
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.stacks.search import StackResult, search_stacks
from shardwright.specs import InputError, OptimizerSpec, SoftwareSpec, TrainingSpec
from tests.planner.conftest import measured, tiny_model
from tests.planner.stacks.small import problem, with_memory

PROFILE = resolve_cluster("dgx-h100", gpus=4)
TRAINING = TrainingSpec(global_batch=8, seq_len=64)


def own_problem(training: TrainingSpec = TRAINING) -> Problem:
    return Problem(tiny_model(6, hidden=64), training, measured(PROFILE))


def test_the_software_follows_from_the_profile() -> None:
    assert software_of(PROFILE).framework == "generic"
    assert software_of(measured(PROFILE)).framework == "shardwright"
    calibrated = PROFILE.model_copy(update={"software": SoftwareSpec(framework="torchtitan")})
    assert software_of(calibrated).framework == "torchtitan"


def test_problems_go_to_their_engines() -> None:
    assert isinstance(engine_for(own_problem()), OwnEngine)
    assert isinstance(engine_for(problem()), StackEngine)


@pytest.mark.parametrize("made", [own_problem(), problem()], ids=["own", "stack"])
def test_both_engines_search_and_predict_alike(made: Problem) -> None:
    engine = engine_for(made)
    found = engine.search(Constraints(top=2))
    assert len(found.ranking) == 2
    assert found.certificate.optimal
    best = found.ranking[0]
    assert engine.predict(best.layout) == best.prediction
    assert not engine.breaks_rules(Constraints())
    assert {1, 2, 4} <= engine.counts("tp")


def test_experts_and_chunks_are_counted() -> None:
    engine = engine_for(problem())
    assert engine.counts("ep") == {1, 2, 4}
    assert {1, 2} <= engine.counts("vpp")
    assert engine.counts("loss_chunks") == frozenset()


def test_the_own_engine_refuses_what_its_books_do_not_describe() -> None:
    for change in ({"trainable": "lora:8"}, {"optimizer": OptimizerSpec(name="muon")}):
        with pytest.raises(InputError, match="--stack"):
            engine_for(own_problem(TRAINING.model_copy(update=change)))
    made = own_problem()
    for choices in ({"offload": "optimizer"}, {"compile": True}, {"ep": 2}, {"cp": 2}):
        with pytest.raises(InputError):
            engine_for(made).predict(layout_of(made, choices))


def test_what_does_not_fit_has_reasons_and_suggestions_that_fit() -> None:
    made = problem(gpus=2, usable_bytes=13_000_000)
    engine = engine_for(made)
    assert engine.search(Constraints()).ranking == ()
    (reason,) = engine.reasons(Constraints())
    assert "13,000,000 bytes" in reason
    found = engine.suggestions(Constraints())
    assert len(found) > 1
    for suggestion in found:
        again = engine_for(suggestion.problem).search(suggestion.constraints)
        assert again.ranking, suggestion.text


@pytest.mark.parametrize(
    ("lacks", "unwanted"),
    [
        ((), "--fix offload=optimizer:"),
        (("offload",), "offload"),
        (("offload=optimizer", "offload=activations+optimizer"), "--fix offload=optimizer:"),
    ],
)
def test_nothing_is_suggested_that_was_open_or_that_the_software_cannot_run(
    lacks: tuple[str, ...], unwanted: str
) -> None:
    made = problem(gpus=1, usable_bytes=45_000_000 if lacks else 33_000_000)
    made = replace(made, software=made.software.model_copy(update={"lacks": lacks}))
    texts = [one.text for one in engine_for(made).suggestions(Constraints())]
    assert texts
    assert not [text for text in texts if unwanted in text.split(" then ")[0]]
    assert not [text for text in texts if text.startswith("--fix loss_chunks")]


def test_what_was_left_open_is_chosen_where_that_is_enough() -> None:
    made = with_memory(problem(gpus=2), 600_000_000)
    (only,) = engine_for(made).suggestions(Constraints(fixed={"tp": 2}))
    assert only.text.startswith(
        "keep what was named and choose the rest (plan --fix tp=2): then tp=2"
    )


def test_what_fits_is_found_where_the_search_runs_out_of_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = problem(gpus=2)

    def cut_short(*arguments: Any) -> StackResult:
        found = search_stacks(*arguments)
        certificate = found.certificate.model_copy(update={"optimal": False, "gap": 1.0})
        return replace(found, ranking=(), ties=(), certificate=certificate)

    monkeypatch.setattr(engine_module, "search_stacks", cut_short)
    found = engine_for(made).search(Constraints(top=1))
    (only,) = found.ranking
    assert only.prediction == engine_for(made).predict(only.layout)
    assert only.prediction.memory_verdict == "fits"
    assert not found.certificate.optimal
    assert found.certificate.gap == 1.0
    tight = with_memory(made, 2_000_000)
    assert engine_for(tight).search(Constraints(top=1)).ranking == ()
