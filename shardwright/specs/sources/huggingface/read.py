"""From a parsed ``config.json`` to a `ModelSpec`, or to a refusal that names the fields."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shardwright.specs._base import describe_misfits
from shardwright.specs.errors import InputError
from shardwright.specs.model import ModelSpec
from shardwright.specs.sources.huggingface.families import FAMILIES
from shardwright.specs.sources.huggingface.fields import (
    HARMLESS,
    HARMLESS_ONLY_AS,
    QUANTIZED_FOR_SERVING,
    Config,
    ModelHead,
    record_fields,
    shown,
    unknown_fields,
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model, and what its source says that the model does not hold."""

    spec: ModelSpec
    notes: tuple[str, ...] = ()


def model_from_config(
    config: Any, *, name: str, source: str, head: ModelHead | None = None
) -> ModelSource:
    """The model that a parsed ``config.json`` describes.

    Encoders come without a task head but with their pooler; ``head`` asks for one in its place.

    Raises:
        InputError: not a JSON object, an unknown ``model_type``, fields that are not supported,
            values that no model can have, or a head that the family does not have; everything
            that is wrong is named in one line.
    """
    if not isinstance(config, dict):
        raise InputError(
            f"{source} holds no model config but a {type(config).__name__}",
            fix="give the config.json of a model",
        )
    family = _family_of(config, source)
    if head is not None and head not in family.heads:
        raise InputError(
            f"a {config['model_type']} model has no {head} head to choose",
            fix="leave the head out",
        )
    config, notes = _without_quantization(config)
    _refuse_unknown_fields(config, family, source)
    names = family.names()
    try:
        parsed = family.model_validate(record_fields(config, family))
        spec = parsed.to_spec(name, config["model_type"], source, head)
    except ValidationError as error:
        raise InputError(
            f"{source} is not a valid {config['model_type']} config:"
            f" {_as_given(describe_misfits(error), names, config)}",
            fix="correct the named fields",
        ) from None
    return ModelSource(spec, (*parsed.notes(), *notes))


def supported_model_types() -> list[str]:
    """Every ``model_type`` that can be read."""
    return sorted(FAMILIES)


def _as_given(text: str, names: dict[str, str], config: dict[str, Any]) -> str:
    """The text with the names of fields that the config uses."""
    for given, field in names.items():
        if given in config and given != field and field not in config:
            text = re.sub(rf"(?<!\w){field}(?!\w)", given, text)
    return text


def _without_quantization(config: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Checkpoints that are quantised for serving are trained in the precision that is asked for."""
    quantization = config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method not in QUANTIZED_FOR_SERVING:
        return config, ()
    rest = {key: value for key, value in config.items() if key != "quantization_config"}
    return rest, (f"the published weights are in {method}; training uses the precision asked for",)


def _unread(config: dict[str, Any]) -> list[str]:
    """Fields of a config that no family reads."""
    known = frozenset().union(*(family.names() for family in FAMILIES.values()))
    passed = {*known, *HARMLESS, *HARMLESS_ONLY_AS}
    return sorted(f"{key} = {shown(value)}" for key, value in config.items() if key not in passed)


def _family_of(config: dict[str, Any], source: str) -> type[Config]:
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    known = supported_model_types()
    if model_type is None:
        raise InputError(
            f"{source} has no model_type", fix=f"add it; supported are {', '.join(known)}"
        )
    near = difflib.get_close_matches(str(model_type), known, n=1, cutoff=0.3)
    raise InputError(
        f"model_type {shown(model_type)} of {source} is not supported",
        why=f"no family reads {', '.join(unread)}"
        if (unread := _unread(config))
        else "its fields are known, but not what it makes of them",
        fix=f"use one of {', '.join(known)}" + (f" (nearest: {near[0]})" if near else ""),
    )


def _refuse_unknown_fields(config: dict[str, Any], family: type[Config], source: str) -> None:
    """Refuse fields that change the architecture, or may, in a way that is not modelled."""
    refused = unknown_fields(config, family)
    classes = config.get("architectures") or []
    for architecture in classes if isinstance(classes, list) else [classes]:
        if not str(architecture).endswith(family.architectures):
            refused.append(f"architectures = {shown(architecture)}")
    if refused:
        raise InputError(
            f"{source} has fields that are not supported for {config['model_type']}:"
            f" {', '.join(refused)}",
            why="they change the model, or may",
            fix="remove what does not apply, or build the model in Python (package.module:factory)",
        )
