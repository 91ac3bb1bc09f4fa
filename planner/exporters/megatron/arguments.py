"""Megatron-LM's command line as data: options in order, and what they say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Option = tuple[str, ...]
"""``("--tensor-model-parallel-size", "8")``, ``("--bf16",)``."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Options with their values, as a script passes them."""

    options: tuple[Option, ...]

    @classmethod
    def of(cls, *lines: str) -> Arguments:
        """From lines such as ``--cp-comm-type p2p``."""
        return cls(tuple(tuple(line.split()) for line in lines))

    def has(self, flag: str) -> bool:
        return any(option[0] == flag for option in self.options)

    def values(self, flag: str) -> tuple[str, ...]:
        """All values of an option, of its last occurrence; empty where it is absent."""
        found = [option[1:] for option in self.options if option[0] == flag]
        return found[-1] if found else ()

    def text(self, flag: str, default: str | None = None) -> str | None:
        values = self.values(flag)
        return values[0] if values else default

    def number(self, flag: str, default: int | None = None) -> int | None:
        """A whole number; ``default`` where the option is absent."""
        text = self.text(flag)
        return default if text is None else int(text)

    def degree(self, flag: str) -> int:
        """A degree of parallelism: 1 where it is not given."""
        return self.number(flag, 1) or 1

    def fraction(self, flag: str, default: float) -> float:
        text = self.text(flag)
        return default if text is None else float(text)

    def present(self, flags: Iterable[str]) -> list[str]:
        """Those of ``flags`` that are given, in their order there."""
        return [flag for flag in flags if self.has(flag)]
