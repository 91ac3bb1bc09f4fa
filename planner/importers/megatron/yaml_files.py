"""YAML files of Megatron-LM arguments: mappings of options, and ``--yaml-cfg`` files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from shardwright.planner.importers.launchers import Launch
from shardwright.planner.importers.megatron.arguments import canonical
from shardwright.planner.importers.plain_yaml import parse_yaml
from shardwright.specs import InputError

_NODES = ("NODES", "NNODES", "NUM_NODES", "nodes", "num_nodes", "nnodes")
_EACH = ("GPUS_PER_NODE", "GPUS", "NPROC_PER_NODE", "gpus_per_node", "gpus", "nproc_per_node",
         "N_GPUS_PER_NODE", "devices", "num_gpus_per_node")  # fmt: skip
_WORLD = ("WORLD_SIZE", "world_size", "num_gpus", "total_gpus")
_ENVIRONMENT = ("ENV_VARS", "env_vars", "ENV", "env", "environment")


def launch_of_yaml(text: str, source: str) -> Launch:
    """The job of a YAML file.

    Raises:
        InputError: it is no YAML mapping, or holds no arguments of Megatron-LM.
    """
    document = parse_yaml(text, source=source)
    if not isinstance(document, dict):
        raise InputError(
            f"{source} holds no mapping", fix="give a file with arguments of Megatron-LM"
        )
    words = list(_words(document))
    if sum(word.startswith("--") and canonical(word) is not None for word in words) < 2:
        raise InputError(
            f"{source} holds no arguments of Megatron-LM",
            fix="give a file with options such as --num-layers: 32",
        )
    nodes, each = _number(document, _NODES), _number(document, _EACH)
    world = _number(document, _WORLD)
    if world is None and nodes is not None and each is not None:
        world = nodes * each
    program = _program(str(document.get("MODEL") or PurePath(source).name).lower())
    return Launch(
        program, tuple(words), _environment(document), 1, "yaml", nodes=nodes, gpus_per_node=each,
        gpus=world,
    )  # fmt: skip


def command_of_yaml(text: str, source: str) -> str | None:
    """The first command of a container, as Kubernetes jobs list it; None where there is none."""
    document = parse_yaml(text, source=source)
    for container in _containers(document):
        words = [*_texts(container.get("command")), *_texts(container.get("args"))]
        if words:
            return shlex.join(words)
    return None


def _containers(value: Any) -> Iterator[Mapping[Any, Any]]:
    """Every mapping with an image and a command."""
    if isinstance(value, dict):
        if "image" in value and ("command" in value or "args" in value):
            yield value
        for inner in value.values():
            yield from _containers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _containers(inner)


def _texts(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


def _program(name: str) -> str:
    """The entry script by the name of the model or the file."""
    words = re.split(r"[^a-z0-9]+", name)
    kind = next((word for word in ("bert", "t5") if word in words), "gpt")
    return f"pretrain_{kind}.py"


def _number(document: Mapping[Any, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = document.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _environment(document: Mapping[Any, Any]) -> dict[str, str]:
    for name in _ENVIRONMENT:
        found = document.get(name)
        if isinstance(found, dict):
            return {str(key): str(value) for key, value in found.items()}
    return {}


def _words(value: Mapping[Any, Any]) -> Iterator[str]:
    """The options of every mapping within, as a command line has them."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            if key not in _ENVIRONMENT:
                yield from _words(inner)
            continue
        name = str(key)
        if not name.startswith("--"):
            plain = name.replace("_", "-")
            if canonical(plain) is None or name.isupper():
                continue
            name = f"--{plain}"
        yield from _option(name, inner)


def _option(name: str, value: Any) -> Iterator[str]:
    if value is None or value is False:
        return
    yield name
    if value is True:
        return
    if isinstance(value, list):
        yield from (str(one) for one in value)
    else:
        yield str(value)
