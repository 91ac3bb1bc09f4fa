"""The lines of a log as people keep them: colours, carriage returns, prefixes, half a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from shardwright.specs import InputError

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\].*?(?:\x07|\x1b\\)|\x1b[()][A-Za-z0-9]")
_BARE_COLOURS = re.compile(r"\[\d{1,2}(?:;\d{1,3})*m")
"""Colours of which copying lost the escape character: ``[36mstep:``."""
_PRINTER = re.compile(
    r"^\s*(?:\[?\s*(?:rank|default)\s*[:=]?\s*(\d+)\s*\]?\s*[:|]?|(\d{1,5}):\s|\[(\d{1,5})\]:?\s)",
    re.IGNORECASE,
)
_HEAD_BYTES = 65536
_MOST_ODD = 0.1
"""Share of signs that no text has, beyond which a file is none."""
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip",
           b"\x28\xb5\x2f\xfd": "zstd"}  # fmt: skip

NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
"""A number as logs print it; commas between thousands."""
GIB = 2**30
MIB = 2**20


def lines_of_file(path: Path) -> Iterator[str]:
    """The lines of a log, plain.

    Raises:
        InputError: no such file, a folder, empty, packed, or no text.
    """
    fix = "give the text that the training printed"
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except FileNotFoundError:
        raise InputError(f"there is no log {path}", fix="check the path") from None
    except OSError as error:
        raise InputError(
            f"cannot read the log {path}: {error.strerror}", fix="check the path"
        ) from None
    for magic, name in _PACKED.items():
        if head.startswith(magic):
            raise InputError(f"{path} is packed ({name})", fix="unpack it and give the text")
    if not head.strip():
        raise InputError(f"{path} is empty", fix=fix)
    encoding = _encoding(head)
    if encoding is None:
        raise InputError(f"{path} is no text", why="it holds binary data", fix=fix)
    with path.open(encoding=encoding, errors="replace", newline=None) as text:
        for line in text:
            yield from lines_of(line)


def _encoding(head: bytes) -> str | None:
    """Of a text; None for what is none. A shell of Windows writes UTF-16."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    text = head.decode("utf-8-sig", errors="replace")
    odd = sum(
        sign == "\ufffd" or (sign < " " and sign not in "\t\r\n\x1b\x07\b\f") for sign in text
    )
    return None if odd > _MOST_ODD * len(text) else "utf-8-sig"


def lines_of(text: str) -> Iterator[str]:
    """Plain lines: no colours; what a progress bar overwrote is a line of its own."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "m" in text and "[" in text:
        text = _BARE_COLOURS.sub("", text)
    for line in re.split(r"[\r\n]", text.replace("\x00", "").replace("\xa0", " ")):
        if line.strip():
            yield line


def printer_of(line: str) -> str | None:
    """The process that printed a line, as launchers say: ``[rank3]:``, ``[default7]:``, ``3:``."""
    found = _PRINTER.match(line)
    return None if found is None else next(filter(None, found.groups()), None)


def number_of(text: str) -> float | None:
    """``6,785`` or ``1.2E+01``; None for what is no number."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def fields_of(text: str) -> dict[str, str]:
    """``name: value`` between bars."""
    found = {}
    for part in text.split("|"):
        name, colon, value = part.partition(":")
        if colon:
            found[name.strip().lower()] = value.strip()
    return found


def leading_number(text: str | None) -> float | None:
    """The number that a value begins with."""
    found = re.match(rf"\s*({NUMBER})", text or "")
    return None if found is None else number_of(found[1])
