"""Errors speak to the user, each kind with its exit code."""

from __future__ import annotations

import pytest

from shardwright.specs import InfeasibleError, InputError, RunError, ShardwrightError


@pytest.mark.parametrize(
    ("kind", "code"),
    [(ShardwrightError, 1), (InputError, 2), (InfeasibleError, 3), (RunError, 4)],
)
def test_exit_codes(kind: type[ShardwrightError], code: int) -> None:
    assert kind("it broke").exit_code == code
    assert isinstance(kind("it broke"), ShardwrightError)


def test_the_text_is_problem_reason_and_cure() -> None:
    error = InputError("tp = 9 is too large", why="there are 8 heads", fix="use tp = 8")
    assert str(error) == "tp = 9 is too large because there are 8 heads. To fix: use tp = 8"
    assert str(RunError("rank 3 died")) == "rank 3 died"
