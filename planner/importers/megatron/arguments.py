"""Megatron-LM's command line of all generations: options by today's name, with their values.

Names and defaults are those of ``megatron/training/arguments.py`` (main of 2026); old names are
those of releases from 2.0 on, of Megatron-DeepSpeed, and of MT-MegatronLM.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardwright.planner.importers.megatron.option_names import (
    FLAGS,
    MANY,
    OLD_NAMES,
    VALUED,
    WITHOUT_EFFECT,
)
from shardwright.planner.importers.shell.unknown import Unknowns, is_known
from shardwright.specs import InputError

_PATHS = frozenset(("deepspeed-config",))
"""Files that the script may have written under a name that is not known."""


@dataclass(slots=True)
class Arguments:
    """Options as read, by today's names."""

    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    as_read: list[tuple[str, ...]] = field(default_factory=list)
    given: set[str] = field(default_factory=set)
    """Names as they were written, also old ones."""
    lost: dict[str, str] = field(default_factory=dict)
    """Options that are given, but whose values are not known, with the reason."""
    unread: list[str] = field(default_factory=list)
    unknowns: Unknowns = field(default_factory=Unknowns)

    def has(self, name: str) -> bool:
        """Whether an option is given."""
        return name in self.values

    def text(self, name: str) -> str | None:
        """The last value of an option; None where it is absent or not known."""
        found = self.values.get(name)
        return found[-1] if found else None

    def many(self, name: str) -> tuple[str, ...]:
        """All words of an option."""
        return tuple(word for value in self.values.get(name, ()) for word in value.split())

    def whole(self, name: str) -> int | None:
        """A whole number; None where the option is absent or not known.

        Raises:
            InputError: it is something else.
        """
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[-+]?\d[\d_]{0,15}", text):
            raise InputError(f"--{name} is {text!r}, not a whole number", fix="correct the script")
        return int(text)

    def count(self, name: str, default: int | None = None) -> int | None:
        """A positive whole number; raises `InputError` for others."""
        value = self.whole(name)
        if value is None:
            return default
        if not 0 < value < 2**31:
            raise InputError(
                f"--{name} is {value}, not a positive number", fix="correct the script"
            )
        return value

    def number(self, name: str, default: float) -> float:
        """A finite number; raises `InputError` for others."""
        text = self.text(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not abs(value) < 1e30:
            raise InputError(f"--{name} is {text!r}, not a number", fix="correct the script")
        return value


def is_option(word: str) -> bool:
    """Whether a word names an option: ``-1`` and ``-.5`` are values."""
    return word.startswith("-") and re.match(r"-+[A-Za-z]", word) is not None


def canonical(name: str) -> str | None:
    """Today's name of an option; None for what is not known here."""
    plain = name.lstrip("-").replace("_", "-")
    plain = OLD_NAMES.get(plain, plain)
    if plain in FLAGS or plain in VALUED:
        return plain
    if len(plain) >= 6 and not WITHOUT_EFFECT.fullmatch(plain):
        longer = [known for known in (*FLAGS, *VALUED) if known.startswith(plain)]
        if len(longer) == 1:
            return longer[0]  # argparse takes what begins one name only
    return None


def parse_arguments(words: Iterable[str], unknowns: Unknowns) -> Arguments:
    """Options and values of a command; the last of equal options holds.

    Quotes that reached the program literally are dropped, as its authors meant them.
    """
    found = Arguments(unknowns=unknowns)
    option: str | None = None
    values: list[str] = []
    for word in (*words, None):
        word = None if word is None else re.sub(r"[ \t\r\n]+", " ", word)
        if word is not None and not is_option(word.strip("'\"")):
            values.append(word.strip("'\""))
            continue
        _keep(found, option, values)
        if word is None:
            break
        option, equals, value = word.strip("'\"").partition("=")
        values = [value.strip("'\"")] if equals else []
    return found


def _keep(found: Arguments, option: str | None, values: list[str]) -> None:
    known = [value for value in values if is_known(value)]
    lost = [value for value in values if not is_known(value)]
    if option is None:
        _note_lost(found, lost, after="the command")
        return
    name = canonical(option)
    found.as_read.append((option, *map(found.unknowns.shown, values)))
    plain = option.lstrip("-").replace("_", "-")
    found.given.add(plain)
    if name is None:
        if not WITHOUT_EFFECT.fullmatch(plain):
            shown = " ".join((option, *map(found.unknowns.shown, values)))
            found.unread.append(f"{shown}: no option that is known here")
        _note_lost(found, lost[1:] if values and not is_known(values[0]) else lost, after=option)
        return
    if name in FLAGS:
        off = known[:1] and known[0].lower() in ("false", "0", "none", "no")
        if off:
            found.values.pop(name, None)
        else:
            found.values[name] = ()
        _note_lost(found, lost, after=option)
        return
    needed = values if name in MANY else values[:1]
    if any(not is_known(value) for value in needed) and name not in _PATHS:
        reasons = "; ".join(
            found.unknowns.reasons(value) for value in needed if not is_known(value)
        )
        found.lost[name] = reasons
        found.values.pop(name, None)
        found.unread.append(f"{option}: {reasons}")
        return
    if not needed:
        found.unread.append(f"{option}: it has no value")
        return
    found.values[name] = tuple(needed)
    found.lost.pop(name, None)
    _note_lost(
        found, [value for value in values[len(needed) :] if not is_known(value)], after=option
    )


def _note_lost(found: Arguments, lost: list[str], *, after: str) -> None:
    """Words that may hold further options; what nobody sets holds none."""
    for value in lost:
        for one in found.unknowns.within(value):
            if not one.is_unset:
                found.unread.append(f"what follows {after}: {one.reason}")
