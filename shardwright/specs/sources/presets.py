"""Well-known models by short name or hub id, without a network.

Each file of ``preset_data/`` states a model's config facts, the hub ids that share them, and where
they were found.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from shardwright.specs._base import Spec
from shardwright.specs.sources.huggingface import (
    ModelHead,
    ModelSource,
    model_from_config,
)

_FOLDER = Path(__file__).parent / "preset_data"


class Preset(Spec):
    """One file of ``preset_data/``."""

    slug: str
    hub_ids: tuple[str, ...]
    """Repositories whose config.json describes this architecture."""
    config: dict[str, Any]
    """The fields of that config.json which decide the architecture."""
    published_parameters: PositiveInt | None
    """What the publisher counts; null where only a rounded figure is known."""
    source: str

    def read(self, head: ModelHead | None = None) -> ModelSource:
        where = f"preset {self.slug}"
        return model_from_config(self.config, name=self.slug, source=where, head=head)


def list_presets() -> list[str]:
    """Slugs of all presets, sorted."""
    return sorted(path.name.removesuffix(".json") for path in _FOLDER.glob("*.json"))


@functools.cache
def preset(slug: str) -> Preset:
    """A preset by its exact slug."""
    text = (_FOLDER / f"{slug}.json").read_text(encoding="utf-8")
    return Preset.from_json(text, source=f"preset {slug}")


def find_preset(text: str) -> Preset | None:
    """The preset whose slug or hub id is ``text``, in any case; None where there is none."""
    return _by_name().get(text.strip().lower())


@functools.cache
def _by_name() -> dict[str, Preset]:
    presets = [preset(slug) for slug in list_presets()]
    return {name.lower(): known for known in presets for name in (known.slug, *known.hub_ids)}
