"""How far predictions are from runs that others measured: tables, plots and a page of the docs.

    python -m benchmarks.fidelity [--data DIR] [--exact] [--write]

Reads ``published_runs.json`` and ``layout_sweeps_a100.json``. Every score is of rows that its model
did not see: stack, model or problem is left out of the fit. ``--exact`` fits anew for each single
model too, which is else taken away to first order. With ``--write``: ``benchmarks/fidelity.md``,
``docs/explanation/fidelity.md`` and its plots. Takes a few minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.fidelity_report import Section, sections
from benchmarks.fidelity_residuals import priced
from benchmarks.fidelity_scores import PUBLISHED, SWEEPS, Evidence, full, gather, read
from shardwright.planner.validation.plots import plot
from shardwright.planner.validation.results import RowResult
from shardwright.planner.validation.stack_fits import StackPricer

DATA = Path("../shared/data")
TARGET = Path("benchmarks/fidelity.md")
PAGE = Path("docs/explanation/fidelity.md")
PLOTS = Path("docs/explanation/fidelity")

_IN_DOCS = ("targets", "sweeps", "stacks", "anchors", "memory", "patterns", "parameters")
_HOW = """\
Every row is priced by a model that did not see it; what is left out of each fit is said beside the
figures. Errors are of predicted over measured step time. `python -m benchmarks.fidelity --write`
writes this page."""


def plots(evidence: Evidence) -> dict[str, tuple[str, str]]:
    """Each figure: its section, and the SVG."""
    shown: dict[str, tuple[str, str, Sequence[RowResult]]] = {
        "sweeps-small": ("sweeps", "A100 sweeps, 2-8 GPUs, problem unseen", evidence.sweeps.small),
        "sweeps-large": ("sweeps", "A100 sweeps, 512 GPUs, problem unseen", evidence.sweeps.large),
        "unseen-stack": (
            "stacks", "Published runs, stack unseen", full(evidence.unseen_stack.results)
        ),
        "unseen-model": (
            "stacks", "Published runs, model unseen", full(evidence.unseen_model.results)
        ),
    }  # fmt: skip
    return {
        name: (section, plot(results, title=title))
        for name, (section, title, results) in shown.items()
    }


def record(parts: Sequence[Section]) -> str:
    """``benchmarks/fidelity.md``: everything."""
    body = "\n\n".join(f"## {part.title}\n\n{part.text}" for part in parts)
    return f"# Predicted against measured\n\n{_HOW}\n\n{body}\n"


def page(parts: Sequence[Section], figures: dict[str, tuple[str, str]]) -> str:
    """The page of the docs: the tables that matter, with plots."""
    return "\n\n".join(_page_parts(parts, figures)) + "\n"


def _page_parts(parts: Sequence[Section], figures: dict[str, tuple[str, str]]) -> Iterator[str]:
    yield f"# Predicted against measured\n\n{_HOW}"
    yield (
        "What the terms are, and where each number comes from, is in [the cost"
        " model](cost-model.md)."
    )
    for part in parts:
        if part.key not in _IN_DOCS:
            continue
        yield f"## {part.title}\n\n{part.text}"
        for name, (section, _) in figures.items():
            if section == part.key:
                alt = f"Predicted against measured step times: {name.replace('-', ' ')}"
                yield f"![{alt}]({PLOTS.name}/{name}.svg)"


def write(parts: Sequence[Section], figures: dict[str, tuple[str, str]]) -> None:
    """The record, the page and the plots."""
    TARGET.write_text(record(parts), encoding="utf-8")
    PLOTS.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(parts, figures), encoding="utf-8")
    for name, (_, svg) in figures.items():
        (PLOTS / f"{name}.svg").write_text(svg, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Predicted against measured step times.")
    parser.add_argument("--data", type=Path, default=DATA, help="holds the two files")
    parser.add_argument("--exact", action="store_true", help="fit anew for each single model")
    parser.add_argument("--write", action="store_true", help=f"write {TARGET}, {PAGE} and plots")
    asked = parser.parse_args(arguments)
    paths = [asked.data / name for name in (PUBLISHED, SWEEPS)]
    for path in paths:
        if not path.exists():
            sys.stderr.write(f"skipped: {path} is not there\n")
            return 0
    published, sweeps = map(read, paths)
    evidence = gather(published, sweeps, exact=asked.exact, progress=_tell)
    rows = priced(published, evidence.unseen_stack.results, StackPricer())
    parts = sections(evidence, rows)
    sys.stdout.write(record(parts))
    if asked.write:
        write(parts, plots(evidence))
    return 0


def _tell(doing: str) -> None:
    sys.stderr.write(f"{doing}\n")


if __name__ == "__main__":
    sys.exit(main())
