"""The commands and the options that the design promises, by their exact names."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main

from shardwright import __version__
from shardwright.cli import execute
from shardwright.cli.app import app
from tools.sources import ROOT

CHOICES_OF_A_PROBLEM = (
    "--cluster", "--gpus", "--nodes", "--global-batch", "--seq-len", "--precision",
    "--optimizer", "--trainable", "--tokens",
)  # fmt: skip

PROMISED = {
    "models": ("--json",),
    "model": ("--json",),
    "clusters": ("--json",),
    "stacks": ("--json",),
    "profile": ("-o",),
    "plan": (
        *CHOICES_OF_A_PROBLEM, "--objective", "--fix", "--forbid", "--top", "-o", "--json",
        "--from-megatron",
    ),
    "estimate": (*CHOICES_OF_A_PROBLEM, "--layout", "--from-megatron", "--json"),
    "explain": ("--why-not",),
    "import": ("--from", "--set", "--add", "-o", "--force", "--json"),
    "export": ("--to", "--target-version", "-o", "--force", "--json"),
    "what-if": (
        *CHOICES_OF_A_PROBLEM, "--vary", "--solve", "--deadline", "--budget", "--mtbf", "--json",
    ),
    "trial": ("--top", "--steps", "--data", "--compare", "--profile", "-o", "--json"),
    "run": ("--data", "--steps", "--init-from", "--save", "--resume", "--json"),
    "calibrate": ("-o",),
    "validate": ("--anchor", "--json"),
    "doctor": ("--json",),
    "cluster init": ("-o", "--from", "--nodes", "--json"),
    "cluster show": ("--json",),
}  # fmt: skip


def all_commands() -> dict[str, Any]:
    """Every command by its name, those of a group behind the group's."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {"": command})
        found |= {f"{name} {part}".strip(): each for part, each in inner.items()}
    return found


def options_of(command: str) -> set[str]:
    return {option for parameter in all_commands()[command].params for option in parameter.opts}


def test_the_commands_are_those_of_the_design() -> None:
    assert list(all_commands()) == list(PROMISED)


@pytest.mark.parametrize("command", PROMISED)
def test_promised_options_exist(command: str) -> None:
    assert set(PROMISED[command]) <= options_of(command)


@pytest.mark.parametrize("command", PROMISED)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*command.split(), "--help"]) == 0
    assert f"Usage: shardwright {command}" in capsys.readouterr().out


@pytest.mark.parametrize("command", PROMISED)
def test_the_reference_names_every_option(command: str) -> None:
    text = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    section = text.split(f"\n## shardwright {command}\n")[1].split("\n## ")[0]
    named = {option for option in options_of(command) if option.startswith("--")} - {"--help"}
    missing = {option for option in named if f"`{option}" not in section}
    assert not missing


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out == f"shardwright {__version__}\n"
