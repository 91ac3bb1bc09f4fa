"""Schedules: one text per action, and nothing missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.specs import Action, ActionKind, InputError, Schedule

SINGLE = [kind for kind in ActionKind if kind is not ActionKind.OVERLAP_F_B]
ACTIONS = st.builds(
    Action,
    st.integers(0, 999),
    st.sampled_from(SINGLE),
    st.one_of(st.none(), st.integers(0, 999)),
)


@given(ACTIONS)
def test_an_action_comes_back_from_its_text(action: Action) -> None:
    assert Action.parse(str(action)) == action


@given(ACTIONS, ACTIONS)
def test_an_overlapped_pair_comes_back_from_its_text(first: Action, second: Action) -> None:
    pair = Action(first.stage, ActionKind.OVERLAP_F_B, None, (first, second))
    assert Action.parse(str(pair)) == pair


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("0F3", Action(0, ActionKind.FORWARD, 3)),
        ("2I1", Action(2, ActionKind.BACKWARD_INPUT, 1)),
        ("1SEND_B12", Action(1, ActionKind.SEND_BACKWARD, 12)),
        ("0UNSHARD", Action(0, ActionKind.UNSHARD)),
        ("0RECOMPUTE3", Action(0, ActionKind.RECOMPUTE, 3)),
    ],
)
def test_texts_are_those_of_torch(text: str, action: Action) -> None:
    assert Action.parse(text) == action
    assert str(action) == text


@pytest.mark.parametrize("text", ["", "F0", "0X1", "0F-1", "(0F0;1B0)", "(0F0)OVERLAP_F_B", "0f0"])
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a schedule action"):
        Action.parse(text)


def schedule(*rows: str, stages: int = 2, micro_batches: int = 1) -> Schedule:
    return Schedule.from_value({
        "name": "custom",
        "num_stages": stages,
        "num_micro_batches": micro_batches,
        "ranks": list(rows),
    })  # fmt: skip


def test_a_schedule_comes_back_byte_for_byte() -> None:
    whole = schedule("0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 (1F0;1I0)OVERLAP_F_B 1SEND_B0 1W0")
    assert whole.violations() == []
    assert Schedule.from_json(whole.to_json()).to_json() == whole.to_json()


def test_a_bad_action_in_a_file_is_named() -> None:
    with pytest.raises(InputError, match="'0Q0' is not a schedule action"):
        schedule("0F0 0Q0", "1F0 1B0")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (("0F0 0B0", "1B0"), "stage 1 runs forward 0 0 times"),
        (("0F0 0F0 0B0", "1F0 1B0"), "stage 0 runs forward 0 2 times"),
        (("0F0", "1F0 1B0"), "stage 0 runs backward of 0 as 0 full, 0 input and 0 weight parts"),
        (("0F0 0I0", "1F0 1B0"), "stage 0 runs backward of 0 as 0 full, 1 input and 0 weight"),
        (("0F0 0B0 0W0", "1F0 1B0"), "stage 0 runs backward of 0 as 1 full, 0 input and 1 weight"),
    ],
)
def test_what_is_missing_or_doubled_is_a_violation(rows: tuple[str, ...], problem: str) -> None:
    (found,) = schedule(*rows).violations()
    assert found.startswith(problem)
