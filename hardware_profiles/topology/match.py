"""Which accelerator of the catalogue a tool means by a name such as ``NVIDIA H100 80GB HBM3``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.catalogue import AcceleratorEntry
from shardwright.specs.units import format_bytes

MEMORY_TOLERANCE = 0.04
"""Drivers of one model report up to this much more or less than another version."""

_FORMS = {"sxm", "pcie", "nvl", "oam"}
_OPTIONAL = {"ascend", "mtt", "rtx", "server", "gcd", "instinct", "edition", "generation", "laptop"}
_MARKETING = re.compile(r"^(\d{2,3})g[bi]?b?$")


@dataclass(frozen=True, slots=True)
class AcceleratorMatch:
    """An entry, and what of it is a guess."""

    entry: AcceleratorEntry
    doubts: tuple[str, ...] = ()

    @property
    def is_guess(self) -> bool:
        return bool(self.doubts)


@dataclass(frozen=True, slots=True)
class _Name:
    """A model name taken apart; memory is what the name itself claims."""

    words: frozenset[str]
    forms: frozenset[str]
    memory_bytes: float | None


def match_accelerator(name: str, memory_bytes: int | None = None) -> AcceleratorMatch | None:
    """The entry whose model words are all in the name, nearest in form and memory.

    None where no model fits. A slice of a device (MIG) matches nothing.
    """
    wanted = _taken_apart(name)
    if "mig" in wanted.words:
        return None
    fitting = []
    for slug in catalogue.list_accelerators():
        core, form = _core_of(slug)
        required = core - _OPTIONAL or core
        if all(_has(wanted.words, word) for word in required):
            spoken = len(required) + sum(_has(wanted.words, word) for word in core & _OPTIONAL)
            fitting.append((spoken, slug, form))
    if not fitting:
        return None
    most = max(spoken for spoken, _, _ in fitting)
    known_bytes = memory_bytes or wanted.memory_bytes
    choices = [(slug, form) for spoken, slug, form in fitting if spoken == most]
    slug, form = min(
        choices, key=lambda c: (_form_misfit(wanted, c[1]), _memory_misfit(c[0], known_bytes))
    )
    doubts = _doubts(wanted, form, slug, known_bytes, choices)
    return AcceleratorMatch(catalogue.accelerator_entry(slug), tuple(doubts))


def nearest_slugs(name: str) -> list[str]:
    """Entries that a user may have meant."""
    wanted = "-".join(sorted(_taken_apart(name).words, key=len, reverse=True)) or name.lower()
    return difflib.get_close_matches(wanted, catalogue.list_accelerators(), n=3, cutoff=0.3)


def _taken_apart(name: str) -> _Name:
    text = re.sub(r"(ascend|mtt|rtx|nvidia|metax)[ _-]?(?=\d|[a-z]\d)", r"\1 ", name.lower())
    words = re.findall(r"[a-z0-9]+", text)
    sizes = [found for word in words if (found := _MARKETING.match(word))]
    # "32 GB" apart from its unit, as some tools print it
    sizes += [found for found in [re.search(r"\b(\d{2,3}) ?gi?b\b", text)] if found]
    forms = {re.sub(r"^sxm\d?$", "sxm", word) for word in words} & _FORMS
    if not forms and any(re.match(r"hbm\d", word) for word in words):
        forms = {"sxm"}  # the driver names SXM boards by their memory: "H100 80GB HBM3"
    memory_bytes = float(sizes[0][1]) * 1e9 if sizes else None
    return _Name(frozenset(words), frozenset(forms), memory_bytes)


def _core_of(slug: str) -> tuple[frozenset[str], str | None]:
    """Model words and board form of a slug, without its memory."""
    words = slug.split("-")[:-1]
    forms = [re.sub(r"^sxm\d?$", "sxm", word) for word in words]
    form = next((word for word in forms if word in _FORMS), None)
    return frozenset(word for word in forms if word not in _FORMS), form


def _has(words: Iterable[str], wanted: str) -> bool:
    """Whether a word is there, a sub-model's number behind it or not: ``910b3`` is a ``910b``."""
    return any(re.fullmatch(rf"{re.escape(wanted)}(?:\d\w?)?", word) for word in words) if (
        wanted[-1:].isalpha() and wanted[:1].isdigit()
    ) else wanted in words  # fmt: skip


def _form_misfit(wanted: _Name, form: str | None) -> int:
    """0: as named. 1: not named and usual (SXM). 2: not named. 3: another form than named."""
    if form is None or form in wanted.forms:
        return 0
    if wanted.forms:
        return 3
    return 1 if form == "sxm" else 2


def _memory_misfit(slug: str, memory_bytes: float | None) -> float:
    if memory_bytes is None:
        return 0.0
    entry = catalogue.accelerator_entry(slug)
    reported = entry.device_reported_memory.in_base_units("bytes")
    nominal = entry.memory.in_base_units("bytes")
    binary = nominal / 1e9 * 2**30  # some of the marketing figures are GiB in truth
    return min(abs(memory_bytes / size - 1) for size in (reported, nominal, binary))


def _doubts(
    wanted: _Name,
    form: str | None,
    slug: str,
    memory_bytes: float | None,
    choices: list[tuple[str, str | None]],
) -> list[str]:
    found = []
    if _form_misfit(wanted, form) == 3:
        found.append(f"the catalogue has no {' '.join(sorted(wanted.forms))} form of it")
    if memory_bytes is None and len(choices) > 1:
        sizes = ", ".join(sorted(choice for choice, _ in choices))
        found.append(f"its memory is not known, and it may be any of {sizes}")
    if memory_bytes is not None and _memory_misfit(slug, memory_bytes) > MEMORY_TOLERANCE:
        found.append(f"it reports {format_bytes(memory_bytes)}, unlike {slug}")
    return found
