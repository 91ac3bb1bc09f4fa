"""Changes say what to type, and change that and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.planner.bounds_text import parse_bounds
from shardwright.planner.changes import Change, changes, choices_text, combined, more_nodes
from shardwright.planner.layout_text import parse_choices
from shardwright.planner.problem import Constraints, Problem
from shardwright.specs import Precision
from tests.planner.stacks.small import problem


def listed(made: Problem, limits: Constraints | None = None) -> list[Change]:
    kinds = changes(made, limits or Constraints(), lambda change: True)
    return [change for kind in kinds for change in kind]


def named(made: Problem, words: str) -> Change:
    (found,) = (change for change in listed(made) if change.words == words)
    return found


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("--precision bf16-pure", "precision", Precision.BF16_PURE),
        ("--gradient-dtype bf16", "gradient_dtype", "bf16"),
        ("--global-batch 2", "global_batch", 2),
        ("--seq-len 512", "seq_len", 512),
        ("--trainable lora:16", "trainable", "lora:16"),
        ("--trainable qlora:16", "trainable", "qlora:16"),
    ],
)
def test_one_option_changes_one_field(words: str, field: str, value: object) -> None:
    made = problem()
    found = named(made, words)
    training = made.training.model_copy(update={field: value})
    assert found.problem == replace(made, training=training)
    assert found.constraints == Constraints()
    assert found.states_batch == (field == "global_batch")


def test_other_optimizers_keep_their_settings() -> None:
    made = problem()
    found = named(made, "--optimizer adamw-8bit").problem.training.optimizer
    assert found == made.training.optimizer.model_copy(update={"name": "adamw-8bit"})


@pytest.mark.parametrize("text", ["loss_chunks=4", "offload=optimizer"])
def test_what_is_not_searched_may_be_fixed(text: str) -> None:
    found = named(problem(), f"--fix {text}")
    assert found.constraints.fixed == parse_choices(text)


def test_what_was_ruled_out_is_allowed_one_by_one_and_then_all() -> None:
    limits = Constraints(
        fixed=parse_choices("tp=2,pp=1"), forbidden=frozenset({"cp", "ep"}),
        bounds=parse_bounds("zero<=1"),
    )  # fmt: skip
    found = {one.words: one.constraints for one in listed(problem(), limits)}
    assert found["allow cp (--forbid 'ep')"].forbidden == {"ep"}
    assert found["leave tp open (--fix 'pp=1')"].fixed == {"pp": 1}
    assert found["drop the bound zero <= 1 (without --bound)"].bounds == ()
    free = found["rule out nothing (without --fix without --forbid without --bound)"]
    assert not free.are_any


def test_the_fewest_nodes_that_help_are_found() -> None:
    made = problem(gpus=8)

    def helps(change: Change) -> bool:
        return change.problem.world >= 5 * 8

    (found,) = more_nodes(made, Constraints(), helps)
    assert found.problem.cluster.groups[0].num_nodes == 5
    assert found.words.startswith("--cluster dgx-h100:5 ")


def test_several_changes_are_last_and_only_where_nothing_was_ruled_out() -> None:
    made = problem()
    found = next(combined(made, Constraints()))
    assert found.words.startswith("--optimizer adamw-8bit --seq-len ")
    assert found.problem.training.optimizer.name == "adamw-8bit"
    assert found.problem.training.seq_len < made.training.seq_len
    assert not list(combined(made, Constraints(fixed={"tp": 2})))


def test_choices_are_written_as_they_are_read() -> None:
    for text in ("tp=2,sequence_parallel=true", "stages=0-5/5-10", "recompute=full:3/none"):
        assert parse_choices(choices_text(parse_choices(text))) == parse_choices(text)
