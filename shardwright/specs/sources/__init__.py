"""From what the user names a model by to a `ModelSpec`.

| text | meaning |
|---|---|
| ``llama-3.1-70b`` | a preset |
| ``meta-llama/Llama-3.1-70B`` | a hub id that resolves to a preset, in any case, offline |
| ``path/to/config.json``, ``path/to`` | a Hugging Face config, or the folder that holds it |
| ``package.module:factory`` | a Python function without arguments that returns a `ModelSpec` |
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import re
import sys
from pathlib import Path

from pydantic import ValidationError

from shardwright.specs._base import describe_misfits, parse_json
from shardwright.specs.errors import InputError
from shardwright.specs.model import ModelSpec
from shardwright.specs.plan import read_text
from shardwright.specs.sources.huggingface import (
    ModelHead,
    ModelSource,
    model_from_config,
    supported_model_types,
)
from shardwright.specs.sources.presets import find_preset, list_presets, preset

__all__ = [
    "ModelHead",
    "ModelSource",
    "list_presets",
    "model_from_config",
    "preset",
    "read_model",
    "resolve_model",
    "supported_model_types",
]

_FACTORY = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)")


def resolve_model(text: str) -> ModelSpec:
    """The model that ``text`` names; see the table above.

    Raises:
        InputError: nothing fits the text, or what it names is not a supported model.
    """
    return read_model(text).spec


def read_model(text: str, *, head: ModelHead | None = None) -> ModelSource:
    """As `resolve_model`, with notes on what the source says and the model does not hold.

    ``head``: for encoders, the head to train in the pooler's place.
    """
    known = find_preset(text)
    if known is not None:
        return known.read(head)
    if os.path.isdir(text) or text.endswith(".json") or os.path.isfile(text):
        return _from_config_file(Path(text), head)
    factory = _FACTORY.fullmatch(text)
    if factory:
        if head is not None:
            raise InputError(f"{text} decides its head itself", fix="leave the head out")
        return ModelSource(_from_factory(factory[1], factory[2]))
    raise _unknown(text)


def _unknown(text: str) -> InputError:
    near = difflib.get_close_matches(text.rpartition("/")[2].lower(), list_presets(), n=3)
    hint = f"try {', '.join(near)}" if near else "see `shardwright models`"
    return InputError(
        f"no preset, hub id or file is named {text!r}",
        why="hub ids are looked up among the presets only, without a network",
        fix=f"{hint}, or give the path of its config.json",
    )


def _from_config_file(path: Path, head: ModelHead | None) -> ModelSource:
    file = path / "config.json" if path.is_dir() else path
    config = parse_json(read_text(file, what="model config"), source=str(file))
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    name = name.encode(errors="replace").decode()  # the system's names need not be text
    return model_from_config(config, name=name or "model", source=str(file), head=head)


def _from_factory(module_name: str, function_name: str) -> ModelSpec:
    """Call the user's function. The working folder is importable, as it is under ``python -m``.

    What it prints goes to stderr: stdout is for answers.
    """
    where = f"{module_name}:{function_name}"
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with contextlib.redirect_stdout(sys.stderr):
            factory = getattr(importlib.import_module(module_name), function_name, None)
            spec = factory() if callable(factory) else None
    except (Exception, SystemExit) as error:  # the user's own code may raise anything
        said = describe_misfits(error) if isinstance(error, ValidationError) else str(error)
        raise InputError(
            f"{where} cannot be used as a model: {type(error).__name__}: {' '.join(said.split())}",
            fix="correct the module, or run from the folder that holds it",
        ) from error
    if factory is None or not callable(factory):
        raise InputError(
            f"module {module_name} has no function {function_name}", fix="check both names"
        )
    if not isinstance(spec, ModelSpec):
        raise InputError(
            f"{where} returned a {type(spec).__name__}, not a ModelSpec",
            fix="return a shardwright.specs.ModelSpec",
        )
    return spec
