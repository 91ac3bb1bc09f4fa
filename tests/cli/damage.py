"""Seeded damage to JSON files: what editors, scripts, disks and hostile hands do to them."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

Place = tuple[Any, Any]
"""A container and the key or position of a value in it."""

NASTY: tuple[Any, ...] = (
    None, True, False, "", " ", "abc", "3", "\x00", "\ud800", "x" * 10_000, [], {}, [None],
    {"a": 1}, -1, 0, 1, 2, 3, 7, -(10**18), 10**9, 10**12, 10**15, 2**63, 10**30, 10**400, 0.5,
    3.5, -0.0, 1e-300, 1e300, math.nan, math.inf, -math.inf,
)  # fmt: skip
"""Values of another type, or too small or too large to be meant."""

FACTORS = (-1, 2, 3, 10, 1000, 10**6, 10**12)
DEEP = 100_000


def mutate(document: str, seed: int) -> tuple[bytes, str]:
    """The bytes of a damaged copy of a JSON ``document``, and what was done to it in words.

    One time in six the text is damaged, else one to three of its values are.
    """
    chance = random.Random(seed)
    if chance.random() < 1 / 6:
        harm = chance.choice(HARMS_TO_TEXT)
        return harm(document.encode(), chance), harm.__name__
    holder = [json.loads(document)]
    done = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        places = list(_places(holder))
        if places:
            place, harm_value = chance.choice(places), chance.choice(HARMS_TO_VALUES)
            done.append(f"{harm_value.__name__} at {place[1]!r:.40}")
            harm_value(place, places, chance)
    text = json.dumps(holder[0] if holder else None)
    return text.replace(TWIN, "").encode(), "; ".join(done)


def _places(container: Any) -> Iterator[Place]:
    """Every place below a container."""
    for key in list(container) if isinstance(container, dict) else range(len(container)):
        yield container, key
        if isinstance(container[key], dict | list):
            yield from _places(container[key])


def cut(text: bytes, chance: random.Random) -> bytes:
    return text[: chance.randrange(len(text))]


def flip_a_bit(text: bytes, chance: random.Random) -> bytes:
    flipped = bytearray(text)
    flipped[chance.randrange(len(text))] ^= 1 << chance.randrange(8)
    return bytes(flipped)


def insert_noise(text: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(text))
    return text[:at] + chance.randbytes(8) + text[at:]


def lose_some(text: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(text))
    return text[:at] + text[at + chance.randrange(1, 20) :]


def empty(text: bytes, chance: random.Random) -> bytes:
    return b""


def nest_deep(text: bytes, chance: random.Random) -> bytes:
    return chance.choice((b"[", b'{"a":')) * DEEP + text


def mark_byte_order(text: bytes, chance: random.Random) -> bytes:
    return b"\xef\xbb\xbf" + text


def widen(text: bytes, chance: random.Random) -> bytes:
    return text.decode().encode("utf-16")


HARMS_TO_TEXT: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    cut, flip_a_bit, flip_a_bit, insert_noise, lose_some, empty, nest_deep, mark_byte_order, widen,
)  # fmt: skip


def drop(place: Place, places: list[Place], chance: random.Random) -> None:
    container, key = place
    del container[key]


def replace(place: Place, places: list[Place], chance: random.Random) -> None:
    container, key = place
    container[key] = copy.deepcopy(chance.choice(NASTY))


def scale(place: Place, places: list[Place], chance: random.Random) -> None:
    """Another number in the document, if there is one."""
    numbers = [at for at in places if type(at[0][at[1]]) in (int, float)]
    if numbers:
        container, key = chance.choice(numbers)
        container[key] *= chance.choice(FACTORS)


def swap(place: Place, places: list[Place], chance: random.Random) -> None:
    """Two plain values: a container cannot be put inside itself."""
    (one, key), (other, other_key) = place, chance.choice(places)
    if not isinstance(one[key], dict | list) and not isinstance(other[other_key], dict | list):
        one[key], other[other_key] = other[other_key], one[key]


def add_a_field(place: Place, places: list[Place], chance: random.Random) -> None:
    container, key = place
    inner = container[key]
    if isinstance(inner, dict):
        inner["surprise"] = chance.choice(NASTY)
    elif isinstance(inner, list):
        inner.append(copy.deepcopy(chance.choice([*inner, None])))
    else:
        container[key] = [inner]


def reshape(place: Place, places: list[Place], chance: random.Random) -> None:
    """A list as an object or the other way round; anything else in a list."""
    container, key = place
    inner = container[key]
    if isinstance(inner, list):
        container[key] = {str(index): item for index, item in enumerate(inner)}
    else:
        container[key] = list(inner.values()) if isinstance(inner, dict) else [inner]


def name_twice(place: Place, places: list[Place], chance: random.Random) -> None:
    container, key = place
    if isinstance(container, dict):
        container[f"{key}{TWIN}"] = copy.deepcopy(chance.choice(NASTY))


HARMS_TO_VALUES: tuple[Callable[[Place, list[Place], random.Random], None], ...] = (
    drop, replace, replace, replace, scale, scale, swap, add_a_field, reshape, name_twice,
)  # fmt: skip

TWIN = "<twin>"
"""Ends the name of a key that becomes its sister's in the text; no dictionary holds both."""
