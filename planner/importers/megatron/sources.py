"""Where a Megatron-LM job's arguments stand: in a shell script, a bare list, or YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shardwright.planner.importers.launchers import Launch, launch_of
from shardwright.planner.importers.megatron.arguments import canonical, is_option
from shardwright.planner.importers.megatron.yaml_files import command_of_yaml, launch_of_yaml
from shardwright.planner.importers.shell.flow import Break, Continue, Exit, Return
from shardwright.planner.importers.shell.reader import Reader, script_text
from shardwright.planner.importers.shell.state import State
from shardwright.planner.importers.shell.unknown import Unknowns
from shardwright.specs import InputError

_FIX = "give the script that starts the training, or its arguments in a file"
MOST_SHOWN = 3
_ALSO_OF_OTHERS = frozenset(
    ("lr", "min-lr", "seed", "optimizer", "weight-decay", "bf16", "fp16", "adam-beta1",
     "adam-beta2", "adam-eps", "deepspeed", "deepspeed-config", "swiglu", "tokenizer-type",
     "train-iters", "vocab-size", "clip-grad", "micro-batch-size", "no-bias")
)  # fmt: skip
"""Options that programs of every kind have."""


@dataclass(slots=True)
class Found:
    """The job that a file starts."""

    launch: Launch
    unknowns: Unknowns = field(default_factory=Unknowns)
    notes: list[str] = field(default_factory=list)
    read: Callable[[str], str | None] = lambda path: None
    """The text of a file that the script wrote or that lies beside it."""


def find_launch(path: Path, given: Mapping[str, str]) -> Found:
    """The training that a file starts.

    Raises:
        InputError: it is empty, no text, or starts no training.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a script", fix=_FIX)
    text = script_text(path)
    if not text.strip():
        raise InputError(f"{path} is empty", fix=_FIX)
    if path.suffix in (".yaml", ".yml"):
        command = command_of_yaml(text, str(path))
        if command is None:
            return Found(launch_of_yaml(text, str(path)))
        return _of_script(path, given, command)
    if text.lstrip().startswith("--"):
        text = "python pretrain_gpt.py " + " ".join(_without_comments(text))
        return _of_script(path, given, text)
    return _of_script(path, given, None)


def _without_comments(text: str) -> list[str]:
    lines = (line.rstrip().removesuffix("\\") for line in text.splitlines())
    return [line for line in lines if not line.lstrip().startswith("#")]


def _of_script(path: Path, given: Mapping[str, str], text: str | None) -> Found:
    whole = path.absolute()
    reader = Reader(whole.parent)
    named = {name: value for name, value in given.items() if not name.isdigit()}
    reader.state = State(dict(named), set(named), pinned=frozenset(named))
    reader.state.directory = str(whole.parent)
    reader.state.variables["PWD"] = str(whole.parent)
    places = [int(name) for name in given if name.isdigit() and 0 < int(name) < 100]
    positional = [given.get(str(place), "") for place in range(1, max(places, default=0) + 1)]
    try:
        if text is not None:
            reader.run_text(text)
        else:
            reader.run_file(str(whole), positional, sourced=False)
    except (Exit, Return, Break, Continue):
        pass
    except RecursionError:
        raise InputError(f"{path} is nested deeper than can be followed", fix=_FIX) from None
    return _chosen(path, reader)


def _chosen(path: Path, reader: Reader) -> Found:
    """The program with Megatron-LM's arguments; of several the first, with a word."""
    launches = [launch_of(one, reader.read, reader.unknowns) for one in reader.invocations]
    scored = [(_score(one), one) for one in launches if one is not None]
    best = max((score for score, _ in scored), default=0)
    if best < 2:
        raise InputError(_nothing_found(path, reader, [one for _, one in scored]), fix=_FIX)
    wanted = [one for score, one in scored if score >= max(2, best // 2)]
    distinct: list[Launch] = []
    for one in wanted:
        if not any(_same(one, other) for other in distinct):
            distinct.append(one)
    notes = list(reader.notes)
    first = distinct[0]
    if len(distinct) > 1:
        lines = ", ".join(str(one.line) for one in distinct[:MOST_SHOWN])
        notes.append(
            f"{len(distinct)} different trainings are started (lines {lines}); this is the first"
        )
    notes += [f"whether it is started depends on a condition: {why}" for why in first.conditions]
    return Found(first, reader.unknowns, notes, reader.read)


def _same(one: Launch, other: Launch) -> bool:
    return (one.arguments, one.gpus, one.nodes, one.program) == (
        other.arguments, other.gpus, other.nodes, other.program)  # fmt: skip


def _score(launch: Launch) -> int:
    """How many arguments are Megatron-LM's."""
    names = {canonical(word.partition("=")[0]) for word in launch.arguments if is_option(word)} - {
        None
    }
    return len(names) if names - _ALSO_OF_OTHERS else 0


def _nothing_found(path: Path, reader: Reader, launches: list[Launch]) -> str:
    if launches:
        names = ", ".join(dict.fromkeys(one.program.rpartition("/")[2] for one in launches[:3]))
        return f"{path} starts {names}, but with no arguments of Megatron-LM"
    missing = f" ({'; '.join(reader.notes[:2])})" if reader.notes else ""
    return f"{path} starts no training program{missing}"
