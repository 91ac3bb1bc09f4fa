"""The text of layouts: ``tp=8,pp=4,zero=1,recompute=full,stages=0-20/20-40/40-60/60-80``.

| name | values |
|---|---|
| tp, cp, pp, vpp, dp, ep, etp | degrees |
| micro_batch (mb), num_microbatches (m) | sequences per pass; passes per step |
| cp_kind | ring, all_to_all, all_gather |
| zero | 0, 1, 2, 3 |
| zero_shard_degree, expert_zero_shard_degree | ranks that share one copy; default all |
| reshard_after_forward, sequence_parallel (sp), compile | on, off |
| recompute | none, full, full:4 (layers), selective, selective:core_attn+mlp; by stage: a/b/c |
| schedule | none, gpipe, 1f1b, interleaved-1f1b, zb-h1, zb-h2, zb-v, dualpipev |
| offload | none, or activations, optimizer, parameters joined by + |
| loss_chunks | pieces of the loss |
| stages | first and last layer, exclusive, of each stage: 0-5/5-10 |
| rank_order | tp-cp-dp-pp, tp-cp-pp-dp |
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from shardwright.planner.problem import ChoiceValue
from shardwright.specs import InputError, Layout, Recompute, ScheduleName
from shardwright.specs.layout import RecomputeModule
from shardwright.specs.ranges import MOST_DEVICES, MOST_LAYERS, MOST_SEQUENCES

DEGREES = ("tp", "cp", "pp", "vpp", "dp", "ep", "etp")
SHARD_DEGREES = ("zero_shard_degree", "expert_zero_shard_degree")
COUNTS = (*DEGREES, "micro_batch", "num_microbatches", *SHARD_DEGREES, "loss_chunks")
SWITCHES = ("reshard_after_forward", "sequence_parallel", "compile")
NAMES = (*COUNTS, *SWITCHES, "cp_kind", "zero", "recompute", "schedule", "offload", "rank_order",
         "stages")  # fmt: skip
ALIASES = {"sp": "sequence_parallel", "mb": "micro_batch", "m": "num_microbatches"}

SCHEDULES = tuple(str(name) for name in ScheduleName if name is not ScheduleName.CUSTOM)
CP_KINDS: tuple[str, ...] = get_args(Layout.model_fields["cp_kind"].annotation)
RANK_ORDERS: tuple[str, ...] = get_args(Layout.model_fields["rank_order"].annotation)
OFFLOADS = ("activations", "optimizer", "parameters")
MODULES: tuple[str, ...] = get_args(RecomputeModule)
_MODULE_ALIASES = {"layernorm": "norm", "act": "mlp_act", "shared_expert": "shared_experts"}
_WORDS: dict[str, tuple[str, ...]] = {
    "zero": ("0", "1", "2", "3"),
    "cp_kind": CP_KINDS,
    "schedule": ("none", *SCHEDULES),
    "rank_order": RANK_ORDERS,
}
_TRUTH = {"true": True, "on": True, "yes": True, "1": True,
          "false": False, "off": False, "no": False, "0": False}  # fmt: skip


def parse_choices(text: str) -> dict[str, ChoiceValue]:
    """``tp=8,pp=4,sp=on`` as names and values.

    Raises:
        InputError: a part without ``=``, a name given twice, an unknown name, an impossible value.
    """
    pairs: list[tuple[str, str]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise InputError(
                f"{part!r} is not a choice", fix="write name=value, such as tp=8,pp=4,zero=1"
            )
        pairs.append((name.strip(), value.strip()))
    names = [ALIASES.get(name, name) for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name} is given {names.count(name)} times", fix="give it once")
    return normalise_choices(dict(pairs))


def normalise_choices(choices: Mapping[str, Any]) -> dict[str, ChoiceValue]:
    """Names and values in one form, from text or Python values.

    Raises:
        InputError: an unknown name or an impossible value.
    """
    found: dict[str, ChoiceValue] = {}
    for given, value in choices.items():
        name = ALIASES.get(given, given)
        if name not in NAMES:
            raise unknown_name(given, [*NAMES, *ALIASES], what="layout choice")
        found[name] = _parse_value(name, value)
    return found


def unknown_name(given: str, known: Iterable[str], *, what: str) -> InputError:
    """The error for a name that does not exist, with the nearest ones that do."""
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    return InputError(
        f"{given!r} is not a {what}", fix=f"choose one of {', '.join(close or names)}"
    )


def _parse_value(name: str, value: Any) -> ChoiceValue:
    if name == "stages":
        return _parse_stages(value)
    text = str(value).strip().lower()
    if name in SWITCHES:
        return _one_of(name, text, _TRUTH)
    if name == "recompute":
        return "/".join(_parse_recompute(part.strip()) for part in text.split("/"))
    if name == "offload":
        return _parse_offload(text)
    if name in _WORDS:
        return _one_of(name, text, {w: int(w) if name == "zero" else w for w in _WORDS[name]})
    most = MOST_SEQUENCES if name in ("micro_batch", "num_microbatches") else MOST_DEVICES
    if not _is_number(text) or not 1 <= int(text) <= most:
        raise InputError(
            f"{name} = {value} is not a count from 1 to {most:,}",
            fix=f"give {name} as 1, 2, 3, ...",
        )
    return int(text)


def _one_of(name: str, text: str, values: Mapping[str, ChoiceValue]) -> ChoiceValue:
    if text not in values:
        raise InputError(
            f"{name} = {text} is not possible here", fix=f"choose one of {', '.join(values)}"
        )
    return values[text]


def _parse_recompute(text: str) -> str:
    """One stage's policy in its plainest spelling."""
    policy, colon, rest = text.partition(":")
    if policy == "full" and (not colon or (_is_number(rest) and 1 <= int(rest) <= MOST_LAYERS)):
        return f"full:{int(rest)}" if colon else "full"
    if policy == "selective":
        modules = [_MODULE_ALIASES.get(m, m) for m in rest.split("+")] if colon else []
        for module in modules:
            if module not in MODULES:
                raise unknown_name(module, MODULES, what="module that can be recomputed")
        ordered = [module for module in MODULES if module in modules]
        return "selective:" + "+".join(ordered) if ordered else "selective"
    if text != "none":
        raise InputError(
            f"recompute = {text} is not possible here",
            fix="choose one of none, full, full:LAYERS, selective, selective:MODULE+MODULE, or one"
            " of them for each stage with / between",
        )
    return "none"


def _parse_offload(text: str) -> str:
    if text in ("none", ""):
        return "none"
    names = text.split("+")
    for name in names:
        if name not in OFFLOADS:
            raise unknown_name(name, [*OFFLOADS, "none"], what="thing that can be offloaded")
    return "+".join(name for name in OFFLOADS if name in names)


def recompute_from(text: str, num_stages: int) -> tuple[Recompute, ...]:
    """A normalised ``recompute`` value as one entry per virtual stage; raises `InputError`."""
    entries = tuple(_recompute_entry(part) for part in text.split("/"))
    if len(entries) == 1:
        return entries * num_stages
    if len(entries) != num_stages:
        raise InputError(
            f"recompute names {len(entries)} stages, but the layout has {num_stages}",
            fix="give one policy for all stages, or one for each of the pp x vpp",
        )
    return entries


def _recompute_entry(text: str) -> Recompute:
    policy, _, rest = text.partition(":")
    value: dict[str, Any] = {"policy": policy}
    if rest and policy == "full":
        value["num_layers"] = int(rest)
    elif rest:
        value["modules"] = tuple(rest.split("+"))
    return Recompute.model_validate(value)


def recompute_text(entries: Iterable[Recompute]) -> str:
    """What `recompute_from` reads: one part where all stages are alike."""
    parts = [_entry_text(entry) for entry in entries]
    return parts[0] if len(set(parts)) == 1 else "/".join(parts)


def _entry_text(entry: Recompute) -> str:
    if entry.policy == "full" and entry.num_layers is not None:
        return f"full:{entry.num_layers}"
    if entry.policy == "selective" and entry.modules:
        return "selective:" + "+".join(m for m in MODULES if m in entry.modules)
    return entry.policy


def _parse_stages(value: Any) -> tuple[int, ...]:
    """``0-5/5-10`` as the layers at which stages stop: (5, 10).

    The tuple's length is pp x vpp and its last entry the number of layers that the writer believes
    in.
    """
    if isinstance(value, tuple) and all(isinstance(stop, int) for stop in value):
        return value
    ranges = []
    for part in str(value).split("/"):
        start, dash, stop = part.strip().partition("-")
        if not (dash and _is_number(start) and _is_number(stop)):
            raise InputError(
                f"stages = {value} is not a list of layer ranges",
                fix="write each stage's first layer and the layer after its last: 0-5/5-10",
            )
        ranges.append((int(start), int(stop)))
    expected = 0
    for first, last in ranges:
        if first != expected or last < first:
            raise InputError(
                f"stages = {value} does not cover the layers in order: {first}-{last} follows"
                f" layer {expected}",
                fix="let each stage start where the one before it stops, and the first at 0",
            )
        expected = last
    return tuple(stop for _, stop in ranges)


def _is_number(text: str) -> bool:
    """Decimal digits, few enough that nobody has to wait for them."""
    return text.isascii() and text.isdigit() and len(text) <= 9
