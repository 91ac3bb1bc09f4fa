"""What small commands print, worked out here: ``dirname``, ``seq``, ``wc -l`` and their kin."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from functools import partial

from shardwright.planner.importers.shell.arithmetic import Evaluator, NotANumberError

MOST_LINES = 1000
READING = frozenset(("wc", "head", "tail", "tr", "cut", "sort", "xargs", "bc"))
"""Those whose output depends on what they read."""

Read = Callable[[str], str | None]
"""The text of a file that may be read; None of others."""


def output(words: list[str], stdin: str | None, read: Read) -> str | None:
    """What a command prints; None where that is not known without running it."""
    name = posixpath.basename(words[0])
    tool = _TOOLS.get(name)
    return None if tool is None else tool(words[1:], stdin, read)


def _echo(words: list[str], _stdin: str | None, _read: Read) -> str:
    ends = "\n"
    interprets = False
    while words and re.fullmatch(r"-[neE]+", words[0]):
        ends = "" if "n" in words[0] else ends
        interprets = interprets or "e" in words[0]
        words = words[1:]
    text = " ".join(words)
    return (_escaped(text) if interprets else text) + ends


def _escaped(text: str) -> str:
    escapes = {"n": "\n", "t": "\t", "\\": "\\"}
    return re.sub(r"\\([nt\\])", lambda match: escapes[match[1]], text)


def _printf(words: list[str], _stdin: str | None, _read: Read) -> str | None:
    if not words:
        return ""
    form, *values = words
    count = len(re.findall(r"%[-0-9.]*[sdifb]", form))
    if "%" in form.replace("%%", "") and not count:
        return None
    turns = max(1, -(-len(values) // count)) if count else 1
    pieces = []
    for turn in range(min(turns, MOST_LINES)):
        given = iter([*values[turn * count : (turn + 1) * count], *[""] * count])
        replace = partial(_formatted, given)
        pieces.append(re.sub(r"%([-0-9.]*)([sdifb])", replace, form))
    return _escaped("".join(pieces).replace("%%", "%"))


def _formatted(given: Iterator[str], match: re.Match[str]) -> str:
    value = next(given)
    if match[2] in "sb":
        return value
    digits = re.fullmatch(r"0?(\d{1,3})", match[1])
    width = int(digits[1]) if digits else 0
    return value.zfill(width) if match[1].startswith("0") else value.rjust(width)


def _dirname(words: list[str], _stdin: str | None, _read: Read) -> str:
    return (posixpath.dirname(words[-1].rstrip("/")) or ".") + "\n" if words else ""


def _basename(words: list[str], _stdin: str | None, _read: Read) -> str | None:
    if not words:
        return None
    name = posixpath.basename(words[0].rstrip("/"))
    suffix = words[1] if len(words) > 1 else ""
    return (name.removesuffix(suffix) if suffix != name else name) + "\n"


def _path(words: list[str], _stdin: str | None, _read: Read) -> str | None:
    plain = [word for word in words if not word.startswith("-")]
    return posixpath.normpath(plain[-1]) + "\n" if plain else None


def _seq(words: list[str], _stdin: str | None, _read: Read) -> str | None:
    separator = "\n"
    if words[:1] == ["-s"]:
        separator, words = words[1], words[2:]
    if not 1 <= len(words) <= 3 or not all(re.fullmatch(r"-?\d{1,9}", word) for word in words):
        return None
    numbers = [int(word) for word in words]
    first = numbers[0] if len(numbers) > 1 else 1
    step = numbers[1] if len(numbers) == 3 else 1
    if step == 0:
        return None
    listed = range(first, numbers[-1] + (1 if step > 0 else -1), step)[:MOST_LINES]
    return separator.join(map(str, listed)) + "\n"


def _calculated(text: str) -> str | None:
    def unknown(name: str) -> str:
        raise NotANumberError(name)

    try:
        return f"{Evaluator(unknown, lambda name, value: None).value(text)}\n"
    except NotANumberError:
        return None


def _expr(words: list[str], _stdin: str | None, _read: Read) -> str | None:
    return _calculated(" ".join(words))


def _bc(words: list[str], stdin: str | None, _read: Read) -> str | None:
    lines = [
        part.strip()
        for part in re.split(r"[;\n]", stdin or "")
        if part.strip() and not part.strip().startswith("scale")
    ]
    is_whole = "/" not in "".join(lines) or not any(word == "-l" for word in words)
    return _calculated(lines[0]) if len(lines) == 1 and is_whole else None


def _input(words: list[str], stdin: str | None, read: Read) -> tuple[list[str], str | None]:
    """The options, and the text of the file that is named, or of the input."""
    options = [word for word in words if word.startswith("-") and word != "-"]
    files = [word for word in words if not word.startswith("-")]
    if not files:
        return options, stdin
    texts = [read(name) for name in files]
    known = [text for text in texts if text is not None]
    return options, "".join(known) if len(known) == len(texts) else None


def _cat(words: list[str], stdin: str | None, read: Read) -> str | None:
    return _input(words, stdin, read)[1]


def _wc(words: list[str], stdin: str | None, read: Read) -> str | None:
    options, text = _input(words, stdin, read)
    if text is None or options not in (["-l"], ["-w"]):
        return None
    return f"{text.count(chr(10)) if options == ['-l'] else len(text.split())}\n"


def _head(words: list[str], stdin: str | None, read: Read) -> str | None:
    count, rest = _count(words)
    text = _input(rest, stdin, read)[1]
    return None if text is None else "".join(text.splitlines(keepends=True)[:count])


def _tail(words: list[str], stdin: str | None, read: Read) -> str | None:
    count, rest = _count(words)
    text = _input(rest, stdin, read)[1]
    return None if text is None or not count else "".join(text.splitlines(keepends=True)[-count:])


def _count(words: list[str]) -> tuple[int, list[str]]:
    """The lines of ``-n 3``, ``-n3`` or ``-3``, and the other words."""
    text = re.match(r"(?:-n ?|-)(\d{1,6})(?: |$)", " ".join(words))
    if text is None:
        return 10, words
    return int(text[1]), words[2:] if words[0] == "-n" else words[1:]


def _tr(words: list[str], stdin: str | None, _read: Read) -> str | None:
    if stdin is None or len(words) != 2:
        return None
    first, second = (_escaped(word) for word in words)
    if first == "-d":
        return "".join(char for char in stdin if char not in second)
    if len(first) == len(second) == 1:
        return stdin.replace(first, second)
    return None


def _cut(words: list[str], stdin: str | None, _read: Read) -> str | None:
    match = re.fullmatch(r"-d ?(.) -f ?(\d{1,3})", " ".join(words))
    if match is None or stdin is None:
        return None
    place = int(match[2]) - 1
    rows = [line.split(match[1]) for line in stdin.splitlines()]
    return "".join(f"{row[place] if place < len(row) else ''}\n" for row in rows)


def _sort(words: list[str], stdin: str | None, read: Read) -> str | None:
    options, text = _input(words, stdin, read)
    if text is None or options not in ([], ["-u"]):
        return None
    lines = sorted(text.splitlines())
    return "".join(f"{line}\n" for line in (dict.fromkeys(lines) if options else lines))


def _xargs(words: list[str], stdin: str | None, _read: Read) -> str | None:
    return None if words or stdin is None else " ".join(stdin.split()) + "\n"


def _nothing(_words: list[str], _stdin: str | None, _read: Read) -> str:
    return ""


_TOOLS: dict[str, Callable[[list[str], str | None, Read], str | None]] = {
    "echo": _echo, "printf": _printf, "dirname": _dirname, "basename": _basename,
    "realpath": _path, "readlink": _path, "seq": _seq, "expr": _expr, "bc": _bc, "cat": _cat,
    "wc": _wc, "head": _head, "tail": _tail, "tr": _tr, "cut": _cut, "sort": _sort,
    "xargs": _xargs, "mkdir": _nothing, "sleep": _nothing, "true": _nothing,
}  # fmt: skip
