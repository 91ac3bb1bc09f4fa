"""Whose files can be read, by the name that users give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shardwright.planner.importers.reading import Reading
from shardwright.specs import InputError, ModelSpec

TARGET = "megatron-lm"
TARGETS = (TARGET, "torchtitan", "deepspeed", "accelerate")
_ALIASES = {
    "megatron": TARGET, "megatron-core": TARGET, "mt-megatronlm": TARGET, "megatron-deepspeed":
    TARGET, "megatron-bridge": TARGET,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Given:
    """What a user says of a file beside it."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Of a script; ``1`` is its first argument."""
    more: tuple[str, ...] = ()
    """Options behind those of the script."""
    model: ModelSpec | None = None
    world: int | None = None
    """Devices in all."""


NOTHING = Given()


def target_named(name: str) -> str:
    """The target of a name; raises `InputError` with the nearest where there is none."""
    from shardwright.planner.question import one_of

    known = name.strip().lower()
    return one_of(_ALIASES.get(known, known), list(TARGETS), "--from")


def read_file(path: Path, target: str, given: Given = NOTHING) -> Reading:
    """What a file of other software says of a job.

    ``target``: of `TARGETS`. Raises `InputError` where the file is none of theirs, cannot be read,
    or is given what only a script takes.
    """
    if not path.exists():
        raise InputError(f"there is no file {path}", fix="check the path")
    if target == TARGET:
        from shardwright.planner.importers.megatron.read import read_megatron

        return read_megatron(
            path, given=given.variables, more=given.more, model=given.model, world=given.world
        )
    if given.variables or given.more:
        raise InputError(
            f"variables and options are given to a script, but {path} is a file of {target}",
            fix="leave out --set and --add",
        )
    if target == "torchtitan":
        from shardwright.planner.importers.torchtitan import read_torchtitan

        return read_torchtitan(path, world=given.world)
    if target == "deepspeed":
        from shardwright.planner.importers.deepspeed import read_deepspeed

        return read_deepspeed(path, world=given.world)
    from shardwright.planner.importers.accelerate import read_accelerate

    return read_accelerate(path, world=given.world)


def variables_from(texts: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` of each text; raises `InputError` for what is written otherwise."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.replace("_", "a").isalnum() or not name.isascii():
            raise InputError(
                f"--set is {text!r}, not a variable with its value", fix="write --set NNODES=16"
            )
        found[name] = value
    return found
