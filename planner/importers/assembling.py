"""A layout from what a file of other software says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.layout_text import recompute_from
from shardwright.planner.problem import ChoiceValue
from shardwright.specs import Layout, ModelSpec, TrainingSpec


def layout_from_choices(
    model: ModelSpec | None,
    training: TrainingSpec | None,
    choices: Mapping[str, ChoiceValue],
    world: int | None,
) -> Layout | None:
    """The layout of named choices; None where model, batch or world are not known, or do not fit.

    ``choices``: as `layout_text.normalise_choices` gives them, without ``dp``.
    """
    if model is None or training is None or world is None:
        return None
    given: dict[str, Any] = dict(choices)
    tp, cp, pp = (int(given.get(name, 1)) for name in ("tp", "cp", "pp"))
    if world % (tp * cp * pp):
        return None
    given["dp"] = world // (tp * cp * pp)
    stops = given.pop("stages", None)
    if isinstance(stops, tuple):
        given["boundaries"] = stops[:-1]
    if given.get("schedule") == "none":
        del given["schedule"]
    offload = str(given.pop("offload", "none"))
    if offload != "none":
        given["offload"] = tuple(offload.split("+"))
    num_stages = pp * int(given.get("vpp", 1))
    given["recompute"] = recompute_from(str(given.get("recompute", "none")), num_stages)
    return Layout.of(model, training, **given)
