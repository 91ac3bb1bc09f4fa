"""Goals say what they need, and by how much they are missed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shardwright.cost_models.money import Terms, run_cost
from shardwright.planner.goals import OBJECTIVES, Goal, in_days, in_usd
from shardwright.planner.problem import Problem
from shardwright.specs import InputError
from tests.planner.stacks.small import problem

BUDGET = 10**12


def with_budget() -> Problem:
    made = problem()
    training = made.training.model_copy(update={"token_budget": BUDGET})
    return replace(made, training=training)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"objective": "speed"}, "step-time"),
        ({"deadline_s": 0.0}, "deadline"),
        ({"budget_usd": -1.0}, "budget"),
        ({"deadline_s": math.inf}, "deadline"),
        ({"slack": 1.0}, "5%"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as raised:
        Goal(**wrong)  # type: ignore[arg-type]
    assert said in str(raised.value)


@pytest.mark.parametrize("goal", [Goal("cost"), Goal(deadline_s=1.0), Goal(budget_usd=1.0)])
def test_money_and_time_need_tokens(goal: Goal) -> None:
    with pytest.raises(InputError, match="--tokens"):
        goal.check(problem())
    replace(goal, terms=Terms(usd_per_gpu_hour=2.0)).check(with_budget())


def test_an_unknown_price_is_asked_for() -> None:
    made = with_budget()
    (group,) = made.cluster.groups
    device = group.accelerator.model_copy(update={"name": "nobody-sells-it"})
    group = group.model_copy(update={"accelerator": device, "usd_per_gpu_hour": None})
    devices = made.cluster.model_copy(update={"groups": (group,)})
    made = replace(made, profile=made.profile.model_copy(update={"devices": devices}))
    with pytest.raises(InputError, match="--usd-per-gpu-hour"):
        Goal("cost").check(made)
    Goal("gpus", deadline_s=1.0).check(made)


def test_limits_are_missed_by_what_the_run_takes_more() -> None:
    made, step_s = with_budget(), 2.0
    terms = Terms(usd_per_gpu_hour=2.0)
    run = run_cost(
        made.cluster, step_time_s=step_s, tokens_per_step=made.training.tokens_per_step,
        token_budget=BUDGET, terms=terms,
    )  # fmt: skip
    assert run.cost_usd is not None
    goal = Goal(deadline_s=run.time_s, budget_usd=run.cost_usd, terms=terms)
    assert goal.run(made, step_s) == run
    assert goal.misses(made, step_s) is None
    late = replace(goal, deadline_s=run.time_s - 86400)
    assert late.misses(made, step_s) == "too_slow"
    (words,) = late.misses_in_words(made, step_s)
    assert "1.0 days more than" in words
    dear = replace(goal, budget_usd=run.cost_usd - 500)
    assert dear.misses(made, step_s) == "too_costly"
    (words,) = dear.misses_in_words(made, step_s)
    assert "$500 more than" in words
    assert Goal().misses(made, step_s) is None


def test_what_was_asked_is_kept_as_it_is_typed() -> None:
    assert Goal().asked() == {}
    assert Goal("cost", deadline_s=86400.0, budget_usd=5e6).asked() == {
        "objective": "cost", "deadline": "86400s", "budget": "5000000",
    }  # fmt: skip
    assert Goal("memory-headroom").asked()["slack"] == "5.0000%"


def test_only_cost_and_gpus_leave_the_number_of_devices_open() -> None:
    assert [name for name in OBJECTIVES if Goal(name).varies_devices] == ["cost", "gpus"]


def test_words() -> None:
    assert in_days(90000.0) == "1.0 days"
    assert in_days(7200.0) == "2.0 hours"
    assert (in_usd(1234.5), in_usd(9.5)) == ("$1,234", "$9.50")
