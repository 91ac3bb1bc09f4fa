"""1F1B whose messages queue: against the general model, against a chain of events, and by hand."""

from __future__ import annotations

import random

import pytest

from shardwright.cost_models.pipeline.fast import StageSeconds, pipeline_times
from shardwright.cost_models.pipeline.orders import computation_order
from shardwright.cost_models.pipeline.queued import queued_times
from shardwright.specs import ActionKind, ScheduleName


def events(
    forward_s: list[float], backward_s: list[float], message_s: list[float], m: int
) -> list[float]:
    """When each stage ends, by running the actions of the schedule one by one."""
    pp = len(forward_s)
    order = computation_order(ScheduleName.ONE_F_ONE_B, pp, 1, m)
    done: dict[tuple[int, str, int | None], float] = {}
    link: dict[tuple[int, str], float] = {}
    position, free = [0] * pp, [0.0] * pp
    while any(position[r] < len(order[r]) for r in range(pp)):
        for r in range(pp):
            while position[r] < len(order[r]):
                action = order[r][position[r]]
                is_forward = action.kind is ActionKind.FORWARD
                source = r - 1 if is_forward else r + 1
                key = (r, "f" if is_forward else "b", action.micro_batch)
                if 0 <= source < pp and key not in done:
                    break
                end = max(free[r], done.get(key, 0.0)) + (
                    forward_s[r] if is_forward else backward_s[r]
                )
                free[r] = end
                position[r] += 1
                target = r + 1 if is_forward else r - 1
                if 0 <= target < pp:
                    lane = (min(r, target), key[1])
                    link[lane] = max(link.get(lane, 0.0), end) + message_s[lane[0]]
                    done[(target, key[1], action.micro_batch)] = link[lane]
    return free


@pytest.mark.parametrize("seed", range(30))
def test_it_is_what_the_actions_one_by_one_take(seed: int) -> None:
    rng = random.Random(seed)
    pp, m = rng.randint(1, 6), rng.randint(1, 14)
    forward = [rng.uniform(0.1, 2) for _ in range(pp)]
    backward = [rng.uniform(0.1, 4) for _ in range(pp)]
    messages = [rng.choice([0.0, 0.05, 3.0]) * rng.random() for _ in range(pp - 1)]
    found = queued_times(forward, backward, messages, m)
    assert found.end_s == pytest.approx(events(forward, backward, messages, m), rel=1e-12)
    work = [m * (f + b) for f, b in zip(forward, backward, strict=True)]
    assert found.busy_s == pytest.approx(work)


@pytest.mark.parametrize("seed", range(20))
def test_without_messages_it_is_the_general_model(seed: int) -> None:
    rng = random.Random(seed)
    pp, m = rng.randint(2, 6), rng.randint(1, 20)
    forward = [rng.uniform(0.1, 2) for _ in range(pp)]
    backward = [rng.uniform(0.1, 4) for _ in range(pp)]
    nothing = [0.0] * (pp - 1)
    general = pipeline_times(
        ScheduleName.ONE_F_ONE_B, pp=pp, vpp=1, num_micro_batches=m,
        seconds=StageSeconds(tuple(forward), tuple(backward), (0.0,) * pp, tuple(nothing)),
    )  # fmt: skip
    found = queued_times(forward, backward, nothing, m)
    assert found.end_s == pytest.approx(general.end_s, rel=1e-12)


def test_a_slow_link_limits_the_step() -> None:
    """Ten messages of 5 s each need 50 s, however short the stages."""
    found = queued_times([0.1, 0.1], [0.1, 0.1], [5.0], 10)
    assert found.end_s[0] > 50.0
