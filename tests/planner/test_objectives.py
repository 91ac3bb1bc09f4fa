"""Each objective against planning every number of devices to its end, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.cost_models.money import Terms, run_cost
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.engine import engine_for
from shardwright.planner.goals import COST, GPUS, HEADROOM, Goal
from shardwright.planner.objectives import (
    Outcome,
    Pursuit,
    goal_suggestions,
    is_round,
    round_sizes,
    sizes,
)
from shardwright.planner.problem import Bound, Constraints, Problem
from shardwright.planner.suggest import unsettled
from tests.planner.stacks.small import problem, with_memory

TOKENS = 10**11
TERMS = Terms(usd_per_gpu_hour=2.0)
DATA_PARALLEL = Constraints(
    fixed={"tp": 1, "cp": 1, "pp": 1}, forbidden=frozenset({"recompute", "offload"}), top=2
)
"""So that each search takes milliseconds and more devices are faster."""


def on(nodes: int) -> Problem:
    """Seven devices cannot share the batch; every other number of one node can."""
    made = problem(gpus=8, global_batch=960, seq_len=4096)
    training = made.training.model_copy(update={"token_budget": TOKENS})
    return replace(made, training=training, profile=resolve_cluster("dgx-h100", nodes=nodes))


def best_step_s(made: Problem, limits: Constraints = DATA_PARALLEL) -> float:
    return engine_for(made).search(limits).ranking[0].prediction.step_time_s


def by_hand(made: Problem) -> dict[int, float]:
    """The best step on every size of the cluster, each searched to its end."""
    found = {}
    for profile in sizes(made.profile):
        smaller = replace(made, profile=profile)
        result = engine_for(smaller).search(DATA_PARALLEL)
        assert result.certificate.optimal
        if result.ranking:
            found[smaller.world] = result.ranking[0].prediction.step_time_s
    return found


def cost_usd(made: Problem, devices: int, step_s: float) -> float:
    (profile,) = (p for p in sizes(made.profile) if p.devices.num_devices == devices)
    run = run_cost(
        profile.devices, step_time_s=step_s, tokens_per_step=made.training.tokens_per_step,
        token_budget=TOKENS, terms=TERMS,
    )  # fmt: skip
    assert run.cost_usd is not None
    return run.cost_usd


def time_s(made: Problem, devices: int, step_s: float) -> float:
    return cost_usd(made, devices, step_s) / (2.0 / 3600) / devices


MADE = on(2)


@pytest.fixture(scope="module")
def steps_s() -> dict[int, float]:
    return by_hand(MADE)


def pursue(goal: Goal, made: Problem = MADE) -> Outcome:
    return Pursuit(made, DATA_PARALLEL, goal).run()


def test_the_cheapest_run_is_that_of_all_sizes(steps_s: dict[int, float]) -> None:
    costs = {devices: cost_usd(MADE, devices, step_s) for devices, step_s in steps_s.items()}
    found = pursue(Goal(COST, terms=TERMS))
    assert found.problem.world == min(costs, key=lambda devices: costs[devices])
    assert found.found is not None
    step_s = found.found.ranking[0].prediction.step_time_s
    assert step_s == pytest.approx(steps_s[found.problem.world], rel=1e-9)
    certificate = found.found.certificate
    assert certificate.optimal
    outcomes = {one.devices: one.outcome for one in certificate.counts}
    assert list(outcomes) == [*range(1, 9), 16]
    assert outcomes.pop(found.problem.world) == "best"
    assert outcomes.pop(7) == "impossible"
    assert set(outcomes.values()) == {"worse"}
    for one in certificate.counts:
        if one.devices == 7:
            continue
        assert one.step_time_s is not None
        assert one.step_time_s <= steps_s[one.devices] * (1 + 1e-9)


def test_a_deadline_narrows_what_is_cheapest(steps_s: dict[int, float]) -> None:
    times_s = {devices: time_s(MADE, devices, step_s) for devices, step_s in steps_s.items()}
    deadline_s = sorted(times_s.values())[3] * 1.001
    allowed = {d: cost_usd(MADE, d, steps_s[d]) for d, t in times_s.items() if t <= deadline_s}
    found = pursue(Goal(COST, deadline_s=deadline_s, terms=TERMS))
    assert found.problem.world == min(allowed, key=lambda devices: allowed[devices])
    outcomes = {one.devices: one.outcome for one in found.counts}
    assert all((outcomes[d] == "too_slow") == (d not in allowed) for d in times_s)


def test_the_fewest_devices_meet_the_deadline(steps_s: dict[int, float]) -> None:
    times_s = {devices: time_s(MADE, devices, step_s) for devices, step_s in steps_s.items()}
    deadline_s = times_s[5] * 1.001
    found = pursue(Goal(GPUS, deadline_s=deadline_s))
    assert found.problem.world == min(d for d, t in times_s.items() if t <= deadline_s)
    assert {one.devices for one in found.counts} == set(range(1, found.problem.world + 1))


def test_without_a_deadline_the_fewest_devices_are_those_on_which_something_fits() -> None:
    full = by_hand(MADE)
    assert pursue(Goal(GPUS)).problem.world == min(full)
    tight = with_memory(MADE, 235_000_000)
    fitting = by_hand(tight)
    assert min(fitting) > 1
    found = pursue(Goal(GPUS), tight)
    assert found.problem.world == min(fitting)
    assert {one.outcome for one in found.counts} <= {"best", "too_small", "impossible"}


def test_the_most_free_memory_is_within_the_slack() -> None:
    goal = Goal(HEADROOM, slack=0.10)
    found = pursue(goal)
    assert found.found is not None
    best_s = best_step_s(MADE)
    chosen = found.found.ranking[0].prediction
    assert chosen.step_time_s <= best_s * 1.10
    peak = max(chosen.peak_memory_bytes)
    step_bytes = chosen.memory_capacity_bytes / 512
    leaner = (Bound("peak_memory", "<=", peak - step_bytes),)
    again = engine_for(MADE).search(replace(DATA_PARALLEL, bounds=leaner)).ranking
    assert not again or again[0].prediction.step_time_s > best_s * 1.10
    assert "10.000% of the best step" in found.found.certificate.space


def test_a_limit_that_is_missed_is_no_plan_but_a_reason_and_what_would_do() -> None:
    fastest = best_step_s(MADE)
    needed_s = time_s(MADE, 16, fastest)
    goal = Goal(deadline_s=needed_s * 0.9, budget_usd=10.0, terms=TERMS)
    found = pursue(goal)
    assert found.found is None
    assert len(found.reasons) == 2
    assert found.certificate is not None
    assert found.certificate.optimal
    helps = goal_suggestions(MADE, DATA_PARALLEL, goal, unsettled)
    (deadline,) = (text for text in helps if text.startswith("--deadline"))
    days = float(deadline.split()[1].removesuffix("d:"))
    assert pursue(replace(goal, deadline_s=days * 86400, budget_usd=None)).found is not None
    (budget,) = (text for text in helps if text.startswith("--objective cost"))
    usd = float(budget.split()[3].removesuffix(":"))
    assert pursue(Goal(COST, budget_usd=usd, terms=TERMS)).found is not None


def test_more_nodes_that_are_suggested_meet_the_deadline_and_fewer_do_not() -> None:
    steps = by_hand(MADE)
    goal = Goal(deadline_s=time_s(MADE, 16, steps[16]) * 0.9)
    texts = goal_suggestions(MADE, DATA_PARALLEL, goal, unsettled)
    (nodes,) = (text for text in texts if text.startswith("--cluster"))
    count = int(nodes.split()[1].rpartition(":")[2])
    assert pursue(goal, on(count)).found is not None
    assert pursue(goal, on(count - 1)).found is None


def test_sizes_are_parts_of_a_node_and_then_nodes() -> None:
    profile = resolve_cluster("dgx-h100:3")
    assert [p.devices.num_devices for p in sizes(profile)] == [*range(1, 9), 16, 24]
    assert sizes(profile)[-1] == profile
    rounded = round_sizes(sizes(resolve_cluster("dgx-h100:33")), 8)
    nodes = [p.devices.groups[0].num_nodes for p in rounded][7:]
    assert nodes == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 33]
    assert [n for n in range(1, 21) if is_round(n)] == [*range(1, 9), 10, 12, 14, 16, 20]


@pytest.mark.parametrize(
    ("limit_s", "tries", "each_s"), [(None, 9, None), (90.0, 9, 10.0), (9.0, 9, 3.0), (1.0, 9, 1.0)]
)
def test_tries_share_the_time_limit(
    limit_s: float | None, tries: int, each_s: float | None
) -> None:
    limits = replace(DATA_PARALLEL, time_limit_s=limit_s)
    assert Pursuit(MADE, limits, Goal(GPUS))._try_limit_s(tries) == each_s
