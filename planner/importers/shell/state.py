"""The variables of a script while it is read, and how two ways through it come together."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwright.planner.importers.shell.nodes import Node
from shardwright.planner.importers.shell.unknown import Unknowns
from shardwright.specs import InputError

LONGEST = 200_000
"""Characters of a value; scripts that people write stay far below."""

Array = dict[str, str]
"""Items by key; those of plain arrays have whole numbers as keys."""
Value = str | Array


@dataclass(slots=True)
class State:
    """All that a command may change."""

    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, Node] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """What the script itself writes to files, by path."""
    pinned: frozenset[str] = frozenset()
    """Variables that the user gave: assignments leave them as they are."""
    directory: str = "."

    def copy(self) -> State:
        """A state that can be changed alone."""
        variables = {
            name: dict(value) if isinstance(value, dict) else value
            for name, value in self.variables.items()
        }
        return State(
            variables, set(self.exported), dict(self.functions), list(self.positional),
            dict(self.files), self.pinned, self.directory,
        )  # fmt: skip

    def set(self, name: str, value: Value) -> None:
        """Give a variable a value, unless the user gave it one."""
        if name in self.pinned:
            return
        size = len(value) if isinstance(value, str) else sum(map(len, value.values()))
        if size > LONGEST:
            raise InputError(
                f"the variable {name} grows beyond {LONGEST:,} characters",
                why="the script appends to it again and again",
                fix="give the script that starts the training itself",
            )
        self.variables[name] = value

    def text(self, name: str) -> str | None:
        """A variable's text: of an array the first item; None where it is not set."""
        value = self.variables.get(name)
        if isinstance(value, dict):
            return value.get("0", next(iter(value.values()), None))
        return value

    def array(self, name: str) -> Array:
        """A variable as an array, which may be changed."""
        value = self.variables.get(name)
        if isinstance(value, dict):
            return dict(value)
        return {} if value is None else {"0": value}


def merged(states: list[State], unknowns: Unknowns, why: str) -> State:
    """One state for all; what differs is not known, and ``why`` says on what it depends."""
    result = states[0].copy()
    for name in dict.fromkeys(name for state in states for name in state.variables):
        values = [state.variables.get(name) for state in states]
        if all(value == values[0] for value in values):
            continue
        if name not in result.pinned:
            result.variables[name] = _either(name, values, unknowns, why)
    for state in states[1:]:
        result.exported |= state.exported
        result.functions = {**state.functions, **result.functions}
        result.files = {**state.files, **result.files}
    return result


def _either(name: str, values: list[Value | None], unknowns: Unknowns, why: str) -> Value:
    """What all values begin with, and a mark for the rest."""
    if any(isinstance(value, dict) for value in values):
        lists = [list(value.values()) if isinstance(value, dict) else [] for value in values]
        common = _common([tuple(items) for items in lists])
        further = [" ".join(map(unknowns.shown, items[len(common) :])) for items in lists]
        mark = unknowns.mark(f"{name} holds also {_options(further)}, {why}")
        return {str(place): item for place, item in enumerate([*common, mark])}
    texts = [value if isinstance(value, str) else "" for value in values]
    words = [tuple(text.split()) for text in texts]
    head = _common(words)
    rest = _options([" ".join(map(unknowns.shown, one[len(head) :])) for one in words])
    if not head:
        return unknowns.mark(f"{name} is {rest}, {why}")
    shortest = min(len(one) for one in words)
    verb = "holds also" if shortest == len(head) else "goes on with"
    return " ".join(head) + " " + unknowns.mark(f"{name} {verb} {rest}, {why}")


def _common(lists: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The items that all lists begin with."""
    count = 0
    for items in zip(*lists, strict=False):
        if any(item != items[0] for item in items):
            break
        count += 1
    return lists[0][:count]


def _options(texts: list[str]) -> str:
    """``8 or nothing``."""
    shown = [text if len(text) <= 60 else f"{text[:57]}..." for text in dict.fromkeys(texts)]
    return " or ".join(text or "nothing" for text in shown)
