"""Follows a script as a shell would, and keeps the programs that it would start.

Nothing is ever executed: commands are looked at, and the few whose output is a matter of text are
worked out here. What depends on the machine stays unknown, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shardwright.planner.importers.shell import commands, tools
from shardwright.planner.importers.shell.arithmetic import NotANumberError
from shardwright.planner.importers.shell.conditions import Facts, Operand, Token, evaluate
from shardwright.planner.importers.shell.expand import MOST_ITEMS, Expander
from shardwright.planner.importers.shell.flow import (
    ASSUMED,
    Break,
    Continue,
    Exit,
    Return,
    Status,
    is_true,
    opposite,
)
from shardwright.planner.importers.shell.nodes import (
    AndOr,
    ArithmeticCommand,
    Body,
    Case,
    Conditional,
    For,
    ForArithmetic,
    Function,
    Group,
    If,
    Node,
    Pipeline,
    Simple,
    While,
)
from shardwright.planner.importers.shell.state import State, merged
from shardwright.planner.importers.shell.syntax import parse
from shardwright.planner.importers.shell.unknown import Unknowns, is_known, without_marks
from shardwright.planner.importers.sizes import directives, sizes_of_all, variables_of
from shardwright.specs import InputError

MOST_STEPS = 50_000
"""Commands that are followed in all."""
MOST_CALLS = 24
"""Functions and files within one another."""
MOST_CHARACTERS = 256 * 1024
"""Of a script."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """A program that the script would start."""

    words: tuple[str, ...]
    layers: tuple[tuple[str, ...], ...]
    """What it is wrapped in, from the outside in."""
    environment: Mapping[str, str]
    line: int
    conditions: tuple[str, ...]
    """On what it depends that could not be decided."""


@dataclass(slots=True)
class Reader:
    """Reads one script, and those that it calls beside it."""

    folder: Path
    """Files below it may be read."""
    unknowns: Unknowns = field(default_factory=Unknowns)
    state: State = field(default_factory=State)
    invocations: list[Invocation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    layers: list[tuple[str, ...]] = field(default_factory=list)
    script: str = "script"
    stdin: str | None = None
    stdout: list[str] | None = None
    """What is printed, where it is wanted."""
    _conditions: list[str] = field(default_factory=list)
    _files: list[str] = field(default_factory=list)
    _calls: int = 0
    _steps: int = 0

    @property
    def expander(self) -> Expander:
        """Expands over the state of now."""
        return Expander(self.state, self.unknowns, self._substituted, self.script)

    def note(self, text: str) -> None:
        """Keep something that could not be read, once."""
        if text not in self.notes:
            self.notes.append(text)

    def run_file(self, path: str, arguments: Iterable[str] = (), *, sourced: bool) -> bool:
        """Follow a script of the folder, or one that was written before; False if there is none.

        Raises:
            InputError: it reads itself, or cannot be read as a script.
        """
        text = self.read(path)
        if text is None:
            return False
        if path not in self.state.files:
            path = str(self._located(path))
        if path in self._files:
            chain = " -> ".join(Path(one).name for one in [*self._files, path])
            raise InputError(f"{Path(path).name} reads itself ({chain})", fix="break the circle")
        before = self.script, self.state.positional, list(self.layers)
        self._files.append(path)
        self.script = path
        asked = directives(text)
        if asked:
            self.layers.insert(max(0, len(self.layers) - 1), asked)
        for name, value in variables_of(sizes_of_all(self.layers)).items():
            self.state.set(name, value)
        given = list(arguments)
        if given or not sourced:
            self.state.positional = given
        self.state.variables["BASH_SOURCE"] = {"0": path}
        try:
            self.run_text(text)
        except Return:
            pass
        except InputError as error:
            if error.problem.startswith("line "):
                raise InputError(
                    f"{Path(path).name}, {error.problem}", why=error.why, fix=error.fix
                ) from None
            raise
        finally:
            self._files.pop()
            self.script, self.state.positional, self.layers = before
            self.state.variables["BASH_SOURCE"] = {"0": self.script}
        return True

    def run_text(self, text: str, *, line: int = 1) -> Status:
        """Follow shell text; raises `InputError` where it is none."""
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise InputError(
                f"functions and scripts call one another more than {MOST_CALLS} levels deep",
                fix="give the script that starts the training itself",
            )
        try:
            return self.run(parse(text, first_line=line))
        finally:
            self._calls -= 1

    def read(self, path: str) -> str | None:
        """The text of a file that the script wrote, or that lies in its folder."""
        if path in self.state.files:
            return self.state.files[path]
        real = self._located(path)
        return None if real is None else script_text(real)

    def _located(self, path: str) -> Path | None:
        """A file of the script's folder, also where a path to elsewhere names it."""
        if not is_known(path):
            path = self.unknowns.shown(path).rpartition("?")[2]
        if not path.strip("./") or "\0" in path:
            return None
        root = self.folder.resolve()
        for candidate in (Path(self.state.directory, path), self.folder / Path(path).name):
            try:
                real = candidate.resolve()
                if real.is_relative_to(root) and real.is_file():
                    return real
            except (OSError, RuntimeError):
                return None
        return None

    def exists(self, path: str, letter: str) -> bool | None:
        """Whether a path is there; None outside the script's folder."""
        if path in self.state.files:
            return letter != "-d"
        root = self.folder.resolve()
        try:
            real = Path(self.state.directory, path).resolve()
            if not real.is_relative_to(root):
                return None
            return real.is_dir() if letter == "-d" else real.exists()
        except (OSError, RuntimeError, ValueError):
            return None

    def run(self, body: Body) -> Status:
        """Follow commands one after the other."""
        status: Status = True
        for node in body:
            status = self._node(node)
        return status

    def _node(self, node: Node) -> Status:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise InputError(
                f"the script takes more than {MOST_STEPS:,} steps before it ends",
                fix="give the script that starts the training itself",
            )
        if isinstance(node, Simple):
            return commands.simple(self, node)
        if isinstance(node, Function):
            self.state.functions[node.name] = node.body
            return True
        if isinstance(node, ArithmeticCommand):
            return commands.arithmetic(self, node)
        if isinstance(node, Conditional):
            return self._conditional(node)
        return self._construct(node)

    def _construct(self, node: Node) -> Status:
        if isinstance(node, Pipeline):
            return self._pipeline(node)
        if isinstance(node, AndOr):
            return self._and_or(node)
        if isinstance(node, If):
            return self._if(node, 0)
        if isinstance(node, For):
            return self._for(node)
        if isinstance(node, ForArithmetic):
            return self._for_arithmetic(node)
        if isinstance(node, While):
            return self._while(node)
        if isinstance(node, Case):
            return self._case(node)
        assert isinstance(node, Group)
        return self._group(node)

    def _group(self, node: Group) -> Status:
        before, given = self.stdin, commands.take_input(self, node.redirects)
        self.stdin = before if given is None else given
        try:
            return self._subshell(node.body) if node.subshell else self.run(node.body)
        finally:
            self.stdin = before

    def _subshell(self, body: Body) -> Status:
        """Commands whose variables nobody sees afterwards."""
        before = self.state
        self.state = before.copy()
        try:
            return self.run(body)
        except Exit:
            return ASSUMED
        finally:
            before.files = self.state.files
            self.state = before

    def _substituted(self, text: str) -> str:
        """What commands print."""
        before_out, before_in = self.stdout, self.stdin
        self.stdout = []
        try:
            self._calls += 1
            if self._calls > MOST_CALLS:
                return self.unknowns.mark("it is nested too deeply")
            stripped = text.strip()
            if stripped.startswith("<") and not stripped.startswith("<<"):
                text = "cat " + stripped[1:]
            self._subshell(parse(text))
            return "".join(self.stdout)
        except (Return, Break, Continue):
            return "".join(self.stdout)
        finally:
            self._calls -= 1
            self.stdout, self.stdin = before_out, before_in

    def _pipeline(self, node: Pipeline) -> Status:
        if len(node.commands) == 1:
            return opposite(self._node(node.commands[0]))
        before_out, before_in = self.stdout, self.stdin
        status: Status = ASSUMED
        for place, command in enumerate(node.commands):
            self.stdout = []
            status = self._subshell((command,))
            self.stdin = "".join(self.stdout)
            if place + 1 == len(node.commands) and before_out is not None:
                before_out.append(self.stdin)
        self.stdout, self.stdin = before_out, before_in
        return opposite(status) if node.negated else status

    def _and_or(self, node: AndOr) -> Status:
        status = self._node(node.first)
        for operator, command in node.rest:
            wanted = operator == "&&"
            if status is None:
                self.fork([(command,), ()], self._undecided(node.first))
            elif is_true(status) == wanted:
                try:
                    status = self._node(command)
                except Exit as stop:
                    if self.invocations or stop.is_final:
                        raise
                    status = ASSUMED  # whoever runs it passed this check
        return status

    def _undecided(self, node: Node) -> str:
        line = getattr(node, "line", None)
        place = f" of line {line}" if line else ""
        return f"which depends on a condition{place} that is not known here"

    def fork(self, bodies: list[Body], why: str) -> None:
        """Follow every way, and keep what they agree on."""
        before, ends = self.state, []
        self._conditions.append(why)
        for body in bodies:
            self.state = before.copy()
            try:
                self.run(body)
            except Exit:
                continue
            except (Break, Continue, Return):
                pass  # whether the loop or the function ends here is not known
            ends.append(self.state)
        self._conditions.pop()
        if not ends:
            self.state = before
            raise Exit(final=True)
        self.state = merged(ends, self.unknowns, why)

    def _if(self, node: If, place: int) -> Status:
        if place == len(node.branches):
            return self.run(node.otherwise)
        condition, body = node.branches[place]
        held = self.run(condition)
        rest: Body = node.otherwise
        if place + 1 < len(node.branches):
            rest = (If(node.line, node.branches[place + 1 :], node.otherwise),)
        if held is None or held == ASSUMED:
            self.fork([body, rest], self._undecided(node))
            return ASSUMED
        if not held:
            return self._if(node, place + 1)
        before, started = self.state.copy(), len(self.invocations)
        try:
            return self.run(body)
        except Exit:
            if len(self.invocations) > started:
                raise
            self.state = before  # whoever runs it does not end here
            return self.run(rest)

    def _turn(self, body: Body) -> bool:
        """Follow a loop's body once; False where it ends the loop."""
        try:
            self.run(body)
        except Continue as stop:
            if stop.levels > 1:
                raise Continue(stop.levels - 1) from None
        except Break as stop:
            if stop.levels > 1:
                raise Break(stop.levels - 1) from None
            return False
        return True

    def _for(self, node: For) -> Status:
        items = (
            list(self.state.positional) if node.words is None else self.expander.fields(node.words)
        )
        for item in items[:MOST_ITEMS]:
            self.state.set(node.name, item)
            if not self._turn(node.body):
                break
        return True

    def _for_arithmetic(self, node: ForArithmetic) -> Status:
        first, condition, step = node.parts
        try:
            self.expander.number(self.expander.text(first))
            for _ in range(MOST_ITEMS):
                text = self.expander.text(condition)
                if text.strip() and not self.expander.number(text):
                    break
                if not self._turn(node.body):
                    break
                self.expander.number(self.expander.text(step))
        except NotANumberError:
            self.fork([node.body, ()], self._undecided(node))
        return True

    def _while(self, node: While) -> Status:
        for _ in range(MOST_ITEMS):
            held = self.run(node.condition)
            if held is None or held == ASSUMED:
                self.fork([node.body, ()], self._undecided(node))
                break
            started = len(self.invocations)
            if held == node.until or not self._turn(node.body):
                break
            if len(self.invocations) > started:
                break  # it starts the same again and again
        return True

    def _case(self, node: Case) -> Status:
        value = self.expander.known_text(node.word)
        if not is_known(value):
            self.fork([*(body for _, body in node.clauses), ()], self._undecided(node))
            return ASSUMED
        for patterns, body in node.clauses:
            for pattern in patterns:
                if commands.matches(value, self.expander.text(pattern)):
                    before, started = self.state.copy(), len(self.invocations)
                    try:
                        return self.run(body)
                    except Exit:
                        if len(self.invocations) > started or pattern != patterns[-1]:
                            raise
                        self.state = before
                        return ASSUMED
        return True

    def _conditional(self, node: Conditional) -> Status:
        tokens: list[Token] = []
        for token in node.tokens:
            if isinstance(token, str):
                tokens.append(token)
            else:
                text = self.expander.known_text(token)
                tokens.append(Operand(text, commands.is_pattern(token)))
        return evaluate(tokens, self.facts())

    def facts(self) -> Facts:
        """What conditions may ask."""
        return Facts(
            exists=self.exists,
            number=self.expander.number,
            is_set=lambda name: name in self.state.variables,
        )

    def call(self, name: str, arguments: list[str]) -> Status:
        """A function of the script."""
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise InputError(
                f"the function {name} calls itself more than {MOST_CALLS} levels deep",
                fix="give the script that starts the training itself",
            )
        before, self.state.positional = self.state.positional, arguments
        try:
            return self._node(self.state.functions[name])
        except Return:
            return ASSUMED
        finally:
            self._calls -= 1
            self.state.positional = before

    def keep(self, words: tuple[str, ...], environment: Mapping[str, str], line: int) -> None:
        """Keep a program that would be started."""
        exported = {
            name: text
            for name in self.state.exported
            if (text := self.state.text(name)) is not None
        }
        self.invocations.append(
            Invocation(
                words, tuple(self.layers), {**exported, **environment}, line,
                tuple(self._conditions),
            )
        )  # fmt: skip

    def printed(self, words: list[str]) -> str:
        """What a command prints, or a mark."""
        if self.stdin is not None and not is_known(self.stdin) and words[0] in tools.READING:
            return self.stdin
        text = tools.output(words, self.stdin, self.read)
        if text is None:
            shown = self.unknowns.shown(" ".join(words))
            return self.unknowns.mark(f"`{shown[:60]}` is not run here")
        return text


def script_text(path: Path, *, most: int = MOST_CHARACTERS) -> str:
    """The text of a user's file of at most ``most`` bytes; raises `InputError` for others."""
    try:
        size = path.stat().st_size
        if size > most:
            raise InputError(
                f"{path} holds {size:,} bytes, more than any launch script",
                fix="give the script that starts the training",
            )
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", fix="check the path and its permissions"
        ) from None
    if "\0" in text:
        raise InputError(
            f"{path} is not a text file", fix="give the script that starts the training"
        )
    return without_marks(text.removeprefix("\ufeff"))
