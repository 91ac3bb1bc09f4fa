"""Every way in which a command can end has its exit code and its one message."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shardwright import cli
from shardwright.cli import app, execute
from shardwright.specs import InfeasibleError, InputError, RunError


def ending_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def command(arguments: Sequence[str], prog_name: str) -> None:
        raise error

    monkeypatch.setattr(app, "app", command)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("there is no x", fix="make one"), 2, "there is no x. To fix: make one"),
        (InfeasibleError("80 GiB do not fit 40 GiB"), 3, "80 GiB do not fit 40 GiB"),
        (RunError("rank 3 died", why="its machine went away"), 4, "because its machine went away"),
        (ZeroDivisionError("by zero"), 1, "a fault of shardwright, not yours: ZeroDivisionError"),
    ],
)
def test_errors_have_exit_codes_and_one_message(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    message: str,
) -> None:
    ending_with(monkeypatch, error)
    assert execute(["plan"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("error", [InputError("wrong"), ZeroDivisionError("by zero")])
def test_debug_adds_the_traceback_and_keeps_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    ending_with(monkeypatch, error)
    code = execute(["plan"])
    assert "Traceback" not in capsys.readouterr().err
    assert execute(["plan", "--debug"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_a_keyboard_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shardwright.cli._checks.CHECKS", {"gloo": interrupted})
    assert execute(["doctor"]) == 130


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["no-such-command"], id="unknown-command"),
        pytest.param(["model"], id="missing-argument"),
        pytest.param(["export", "plan.json"], id="missing-option"),
        pytest.param(["plan", "gpt2", "--cluster", "x", "--gpus", "0"], id="zero-gpus"),
        pytest.param(["plan", "gpt2", "--cluster", "x", "--gpus", "many"], id="no-number"),
        pytest.param(["models", "--no-such-option"], id="unknown-option"),
    ],
)
def test_usage_errors_end_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert execute(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert "Usage: shardwright" in err


@pytest.mark.parametrize(
    ("arguments", "named"), [(["plan"], "--from-megatron"), (["plan", "gpt2"], "--cluster C")]
)
def test_what_a_script_may_say_in_its_place_is_asked_for(
    capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert execute(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: no ")
    assert named in err


def test_exit_codes_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, code in ((0, 0), (None, 0), (3, 3), ("text", cli.OUR_FAULT)):
        ending_with(monkeypatch, SystemExit(given))
        assert execute([]) == code


def test_main_exits_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["shardwright", "no-such-command"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
