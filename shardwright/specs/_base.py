"""The common base of everything that is read from or written to a file."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from shardwright.specs.errors import InputError


def parse_json(text: str, *, source: str) -> Any:
    """The value of a JSON text in which every key of an object is given once.

    Raises:
        InputError: not JSON, a key given twice, or half of a surrogate pair, which is no text.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        problem = f"half of a surrogate pair ({error.object[error.start]!a}) is no text"
    except (ValueError, RecursionError) as error:
        problem = str(error)
    else:
        return value
    raise InputError(f"{source} is not valid JSON: {problem}", fix="restore or re-create the file")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        key, times = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {key!r} is given {times} times in one object")
    return found


class Spec(BaseModel):
    """A frozen, strict record of finite numbers: unknown fields are refused, equal means same."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    def to_json(self) -> str:
        """Canonical text: two-space indent, fields in their declared order, one final newline.

        ``from_json(text).to_json() == text`` for every text that this method wrote.
        """
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, *, source: str = "the given text") -> Self:
        """Parse canonical or hand-written JSON.

        Raises:
            InputError: the text is not JSON, or does not fit the schema; every misfit is listed.
        """
        return cls.from_value(parse_json(text, source=source), source=source)

    @classmethod
    def from_value(cls, value: Any, *, source: str = "the given value") -> Self:
        """Validate an already parsed JSON value; raises `InputError` listing every misfit."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise InputError(
                f"{source} is not a valid {cls.__name__}: {describe_misfits(error)}",
                fix="correct the named fields",
            ) from None

    def content_hash(self) -> str:
        """SHA-256 over the canonical text, as 64 hex digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def describe_misfits(error: ValidationError, *, most: int = 5) -> str:
    """One line that names each misfit field, its value and what was expected."""
    misfits = error.errors(include_url=False)
    parts = []
    for misfit in misfits[:most]:
        if not misfit["loc"]:  # a rule over several fields, whose text names them
            parts.append(misfit["msg"].removeprefix("Value error, "))
            continue
        where = ".".join(str(part) for part in misfit["loc"])
        given = repr(misfit["input"])
        shown = given if len(given) <= 60 else given[:57] + "..."
        parts.append(f"{where}: {misfit['msg']} (got {shown})")
    if len(misfits) > most:
        parts.append(f"and {len(misfits) - most} more")
    return "; ".join(parts)
