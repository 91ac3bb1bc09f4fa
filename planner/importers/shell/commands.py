"""Commands of a script: those of the shell are followed, all others are kept or passed over."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shardwright.planner.importers.shell.arithmetic import NotANumberError
from shardwright.planner.importers.shell.conditions import Operand, evaluate
from shardwright.planner.importers.shell.flow import (
    ASSUMED,
    Break,
    Continue,
    Exit,
    Return,
    Status,
)
from shardwright.planner.importers.shell.nodes import (
    ArithmeticCommand,
    Assignment,
    Redirect,
    Simple,
    Text,
    Word,
)
from shardwright.planner.importers.shell.state import Array
from shardwright.planner.importers.shell.syntax import DECLARING
from shardwright.planner.importers.shell.unknown import is_known
from shardwright.planner.importers.sizes import directives, sizes_of_all, variables_of
from shardwright.planner.importers.wrappers import SHELLS, Peeled, base, peeled

if TYPE_CHECKING:
    from shardwright.planner.importers.shell.reader import Reader

_ASSIGNS = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)")
_PROGRAM = r"\.py$|python|torchrun|deepspeed|accelerate|launcher"
_SETTING_UP = frozenset(
    (
        "activate", "conda.sh", ".bashrc", ".bash_profile", ".profile", "profile", "bashrc",
        "setvars.sh", "set_env.sh", "modules.sh", "bash", "lmod.sh", "init.sh",
    )
)  # fmt: skip
"""Files that prepare an environment of programs and say nothing of a job."""
_ASKING = frozenset(
    (
        "grep", "egrep", "fgrep", "which", "type", "hash", "pgrep", "diff", "cmp", "ping",
        "nc", "nvidia-smi", "rocm-smi", "mthreads-gmi", "getent", "mountpoint", "command",
    )
)  # fmt: skip
"""They are called for their status."""


def is_pattern(word: Word) -> bool:
    """Whether a word of ``[[ ]]`` has an unquoted ``*``, ``?`` or bracket."""
    plain = "".join(part.text for part in word if isinstance(part, Text) and not part.quoted)
    return any(char in plain for char in "*?[")


def matches(value: str, pattern: str) -> bool:
    """Whether a pattern of ``case`` fits a value."""
    return fnmatch.fnmatchcase(value, pattern)


def arithmetic(reader: Reader, node: ArithmeticCommand) -> Status:
    """``(( expression ))``: true where it is not 0."""
    text = reader.expander.text(node.expression)
    try:
        return reader.expander.number(text) != 0
    except NotANumberError as error:
        assigned = _ASSIGNS.match(text)
        if assigned:
            reader.state.set(assigned[1], reader.unknowns.mark(str(error)))
        return None


def assign(reader: Reader, one: Assignment) -> None:
    """Give a variable of the script its value."""
    state, expander = reader.state, reader.expander
    if one.value is None:
        items: Array = state.array(one.name) if one.append else {}
        _add_items(reader, one, items)
        state.set(one.name, items)
        return
    text = expander.text(one.value)
    if one.index is not None:
        array = state.array(one.name)
        key = expander.key(one.name, one.index)
        array[key] = array.get(key, "") + text if one.append else text
        state.set(one.name, array)
    elif one.append and isinstance(state.variables.get(one.name), dict):
        array = state.array(one.name)
        array["0"] = array.get("0", "") + text
        state.set(one.name, array)
    else:
        state.set(one.name, (state.text(one.name) or "") + text if one.append else text)


def _add_items(reader: Reader, one: Assignment, items: Array) -> None:
    place = 1 + max((int(key) for key in items if key.isdigit()), default=-1)
    for item in one.items:
        if item.key is not None:
            key = reader.expander.text(item.key).strip("'\"")
            items[key] = reader.expander.text(item.value)
            place = int(key) + 1 if key.isdigit() and len(key) < 7 else place
            continue
        for field in reader.expander.fields((item.value,)):
            items[str(place)] = field
            place += 1


def simple(reader: Reader, node: Simple) -> Status:
    """One simple command."""
    first = node.words[0] if node.words else ()
    name = _plain(first)
    if name in DECLARING:
        return _declare(reader, name, node)
    fields = reader.expander.fields(node.words)
    while len(fields) > 1 and fields[0] and not reader.expander.settled(fields[0]):
        fields = fields[1:]  # a variable that nobody sets, before the command
    if not fields:
        for one in node.assignments:
            assign(reader, one)
        return True
    if fields[0] in ("command", "builtin") and len(fields) > 1 and not fields[1].startswith("-"):
        fields = fields[1:]
    with_input = take_input(reader, node.redirects)
    before = reader.stdin if with_input is None else with_input
    reader.stdin, before = before, reader.stdin
    try:
        return _dispatched(reader, node, fields)
    finally:
        if with_input is not None:
            reader.stdin = before


def _plain(word: Word | Assignment) -> str:
    if isinstance(word, Assignment):
        return ""
    return "".join(part.text if isinstance(part, Text) else "?" for part in word)


def _dispatched(reader: Reader, node: Simple, fields: list[str]) -> Status:
    name, arguments = fields[0], fields[1:]
    if name in reader.state.functions:
        with_environment = {one.name: one for one in node.assignments}
        for one in with_environment.values():
            assign(reader, one)
        return reader.call(name, arguments)
    if name in _BUILTINS:
        before = reader.state.text("IFS")
        for one in node.assignments:
            if one.name == "IFS":
                reader.state.set("IFS", reader.expander.text(one.value or ()))
        status = _BUILTINS[name](reader, arguments)
        if before is None:
            reader.state.variables.pop("IFS", None)
        else:
            reader.state.set("IFS", before)
        return status
    if fields[:2] == ["printf", "-v"] and len(fields) > 3:
        reader.state.set(fields[2], reader.printed(["printf", *fields[3:]]))
        return True
    environment = {one.name: reader.expander.text(one.value or ()) for one in node.assignments}
    return _program(reader, node, fields, environment)


def _declare(reader: Reader, name: str, node: Simple) -> Status:
    exported = name == "export"
    removes = False
    for word in node.words[1:]:
        if isinstance(word, Assignment):
            assign(reader, word)
            names = [word.name]
        else:
            names = reader.expander.fields((word,))
        for one in names:
            if one.startswith("-"):
                exported = exported or "x" in one
                removes = removes or "n" in one
                continue
            _declare_text(reader, one)
            target = one.partition("=")[0]
            if exported and not removes:
                reader.state.exported.add(target)
            elif removes:
                reader.state.exported.discard(target)
    return True


def _declare_text(reader: Reader, text: str) -> None:
    """``NAME=value`` that came out of an expansion: ``export $PAIR``."""
    name, equals, value = text.partition("=")
    if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
        reader.state.set(name, value)


def take_input(reader: Reader, redirects: tuple[Redirect, ...]) -> str | None:
    """The text that a command reads from a file, a here-document or a here-string; None where
    nothing is redirected to it."""
    found = None
    for one in redirects:
        if one.operator in ("<<", "<<-"):
            found = reader.expander.text(one.target)
        elif one.operator == "<<<":
            found = reader.expander.text(one.target) + "\n"
        elif one.operator == "<":
            path = reader.expander.text(one.target)
            found = reader.read(path)
            if found is None:
                shown = reader.unknowns.shown(path)
                found = reader.unknowns.mark(f"{shown} is not beside the script")
    return found


def _program(
    reader: Reader, node: Simple, fields: list[str], environment: Mapping[str, str]
) -> Status:
    """A command that is not the shell's own."""
    found = peeled(tuple(fields))
    if found.text is not None or found.rest:
        return _wrapped(reader, node, found, environment)
    has_input = any(one.operator in ("<<", "<<-") for one in node.redirects)
    last = base(fields[-1])
    if has_input and reader.stdin and (last in SHELLS or "-s" in fields or found.layers):
        return _with_text(reader, found, reader.stdin, environment, node.line)
    if base(fields[0]) in _ASKING:
        _print(reader, node.redirects, reader.unknowns.mark(f"`{fields[0]}` is not run here"))
        return None
    if reader.stdout is not None or any(">" in one.operator for one in node.redirects):
        if base(fields[0]) == "tee":
            _print(reader, node.redirects, reader.stdin or "")
            for target in fields[1:]:
                if not target.startswith("-") and reader.stdin is not None:
                    reader.state.files[target] = reader.stdin
        else:
            _print(reader, node.redirects, reader.printed(fields))
    return ASSUMED


def _print(reader: Reader, redirects: tuple[Redirect, ...], text: str) -> None:
    """Where what a command prints goes: a file of the script, or who reads its output."""
    for one in redirects:
        if one.operator in (">", ">>", ">|", "&>"):
            path = reader.expander.text(one.target)
            if path == "/dev/null":
                return
            if path not in ("/dev/stdout", "/dev/stderr"):
                before = reader.state.files.get(path, "") if one.operator == ">>" else ""
                reader.state.files[path] = before + text
                return
        elif one.operator == ">&":
            return
    if reader.stdout is not None:
        reader.stdout.append(text)


def _wrapped(reader: Reader, node: Simple, found: Peeled, environment: Mapping[str, str]) -> Status:
    """A program behind its wrappers: a shell script is followed, others are kept."""
    if found.text is not None:
        return _with_text(reader, found, found.text, environment, node.line)
    path, *arguments = found.rest
    is_script = base(path) in SHELLS or re.search(r"\.(?:sh|bash|slurm|sbatch|job|sub)$", path)
    entered = [*found.layers]
    if is_script or not re.search(_PROGRAM, path):
        before, reader.layers = list(reader.layers), [*reader.layers, *entered]
        kept = reader.state.copy()
        _enter(reader, found, environment)
        try:
            if not reader.run_file(path, arguments, sourced=False) and not _behind(
                reader, arguments, environment, node.line
            ):
                reader.note(
                    f"line {node.line}: it starts {reader.unknowns.shown(path)}, which is not"
                    " beside it"
                )
        except Exit:
            pass
        finally:
            reader.layers = before
            kept.files = reader.state.files
            reader.state = kept
        return ASSUMED
    before, reader.layers = list(reader.layers), [*reader.layers, *entered]
    reader.keep(found.rest, {**environment, **found.environment}, node.line)
    reader.layers = before
    return ASSUMED


def _behind(
    reader: Reader, arguments: list[str], environment: Mapping[str, str], line: int
) -> bool:
    """Keep the program that a script of its own only wraps: ``./numa.sh python train.py``."""
    found = peeled(tuple(arguments)) if arguments else Peeled()
    if not found.rest or not re.search(_PROGRAM, found.rest[0]):
        return False
    reader.layers += found.layers
    reader.keep(found.rest, {**environment, **found.environment}, line)
    return True


def _enter(reader: Reader, found: Peeled, environment: Mapping[str, str]) -> None:
    """Give a child its environment."""
    for name, value in {**environment, **found.environment}.items():
        reader.state.set(name, value)
        reader.state.exported.add(name)


def _with_text(
    reader: Reader, found: Peeled, text: str, environment: Mapping[str, str], line: int
) -> Status:
    """Shell text as a child runs it."""
    if not is_known(text) and len(text) < 12:
        reader.note(f"line {line}: {reader.unknowns.reasons(text)}")
        return ASSUMED
    before, kept = list(reader.layers), reader.state.copy()
    asked = directives(text)
    reader.layers = [*reader.layers, *([asked] if asked else []), *found.layers]
    _enter(reader, found, environment)
    if found.positional:
        reader.state.positional = list(found.positional)
    for name, value in variables_of(sizes_of_all(reader.layers)).items():
        reader.state.set(name, value)
    try:
        reader.run_text(text, line=line)
    except Exit:
        pass
    finally:
        reader.layers = before
        kept.files = reader.state.files
        reader.state = kept
    return ASSUMED


def _test(reader: Reader, arguments: list[str]) -> Status:
    words = arguments[:-1] if arguments[-1:] == ["]"] else arguments
    settled = [reader.expander.settled(word) for word in words]
    return evaluate(
        [word if word in ("(", ")", "!") else Operand(word) for word in settled], reader.facts()
    )


def _set(reader: Reader, arguments: list[str]) -> Status:
    if "--" in arguments:
        reader.state.positional = arguments[arguments.index("--") + 1 :]
    elif arguments and arguments[0][:1] not in ("-", "+"):
        reader.state.positional = arguments
    return True


def _shift(reader: Reader, arguments: list[str]) -> Status:
    count = int(arguments[0]) if arguments and arguments[0].isdigit() else 1
    had = len(reader.state.positional)
    reader.state.positional = reader.state.positional[count:]
    return had >= count


def _source(reader: Reader, arguments: list[str]) -> Status:
    if not arguments or reader.run_file(arguments[0], arguments[1:], sourced=True):
        return ASSUMED
    if base(arguments[0]) not in _SETTING_UP:
        reader.note(f"it sources {reader.unknowns.shown(arguments[0])}, which is not beside it")
    return ASSUMED


def _eval(reader: Reader, arguments: list[str]) -> Status:
    return reader.run_text(" ".join(arguments))


def _exit(reader: Reader, arguments: list[str]) -> Status:
    raise Exit


def _return(reader: Reader, arguments: list[str]) -> Status:
    raise Return


def _levels(arguments: list[str]) -> int:
    return int(arguments[0]) if arguments and arguments[0].isdigit() else 1


def _break(reader: Reader, arguments: list[str]) -> Status:
    raise Break(_levels(arguments))


def _continue(reader: Reader, arguments: list[str]) -> Status:
    raise Continue(_levels(arguments))


def _unset(reader: Reader, arguments: list[str]) -> Status:
    for name in arguments:
        if name not in reader.state.pinned:
            reader.state.variables.pop(name, None)
        reader.state.exported.discard(name)
    return True


def _read(reader: Reader, arguments: list[str]) -> Status:
    """``read NAMES``: from a here-string or document, else nobody knows what."""
    whole = array = False
    names: list[str] = []
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif re.fullmatch(r"-[rsaed]*", word) and word != "-":
            array = array or "a" in word
            whole = whole or "d" in word
            skip = word.endswith("d")
        elif word in ("-p", "-t", "-n", "-u"):
            skip = True
        else:
            names.append(word)
    text = reader.stdin
    if text == "":
        return False
    if text is None or (not is_known(text) and not whole):
        for name in names:
            reader.state.set(name, reader.unknowns.mark(f"{name} is read when it runs"))
        return None
    line = text if whole else text.split("\n")[0]
    reader.stdin = "" if whole else text.partition("\n")[2]
    _give(reader, names, line, array=array, whole=whole)
    return True


def _give(reader: Reader, names: list[str], line: str, *, array: bool, whole: bool) -> None:
    """Spread a line over the variables of ``read``."""
    separator = reader.state.text("IFS")
    words = line.split(separator) if separator and separator.strip() else line.split()
    if array and names:
        reader.state.set(names[0], {str(place): word for place, word in enumerate(words)})
        return
    for place, name in enumerate(names):
        is_last = place + 1 == len(names)
        rest = line.strip() if whole and len(names) == 1 else " ".join(words[place:])
        reader.state.set(name, rest if is_last else "".join(words[place : place + 1]))


def _mapfile(reader: Reader, arguments: list[str]) -> Status:
    name = next((word for word in reversed(arguments) if not word.startswith("-")), "MAPFILE")
    lines = (reader.stdin or "").splitlines()
    if not lines:
        lines = [reader.unknowns.mark(f"{name} is read when it runs")]
    reader.state.set(name, {str(place): line for place, line in enumerate(lines)})
    return True


def _cd(reader: Reader, arguments: list[str]) -> Status:
    target = next((word for word in arguments if not word.startswith("-")), "")
    if is_known(target) and target and not target.startswith("/"):
        target = f"{reader.state.directory}/{target}"
    if is_known(target) and target:
        reader.state.directory = target
    return ASSUMED


def _pwd(reader: Reader, arguments: list[str]) -> Status:
    if reader.stdout is not None:
        reader.stdout.append(reader.state.directory + "\n")
    return True


def _let(reader: Reader, arguments: list[str]) -> Status:
    for text in arguments:
        try:
            reader.expander.number(text)
        except NotANumberError as error:
            assigned = _ASSIGNS.match(text)
            if assigned:
                reader.state.set(assigned[1], reader.unknowns.mark(str(error)))
    return True


def _fixed(status: Status) -> Callable[[Reader, list[str]], Status]:
    return lambda reader, arguments: status


_BUILTINS: dict[str, Callable[[Reader, list[str]], Status]] = {
    "[": _test, "test": _test, "set": _set, "shift": _shift, "source": _source, ".": _source,
    "eval": _eval, "exit": _exit, "return": _return, "break": _break, "continue": _continue,
    "unset": _unset, "read": _read, "mapfile": _mapfile, "readarray": _mapfile,
    "cd": _cd, "pushd": _cd, "pwd": _pwd, "let": _let, ":": _fixed(True), "true": _fixed(True),
    "false": _fixed(False), "getopts": _fixed(False), "trap": _fixed(True), "wait": _fixed(True),
    "ulimit": _fixed(True), "umask": _fixed(True), "popd": _fixed(True), "alias": _fixed(True),
    "shopt": _fixed(True), "module": _fixed(ASSUMED), "ml": _fixed(ASSUMED),
}  # fmt: skip
