"""`trial` held against what it claims: on this machine's cores, and on two emulated hosts.

    python -m benchmarks.trial cores --layouts 10 --rounds 5
    python -m benchmarks.trial hosts --layouts 14 --rounds 5

``cores``: two ranks, a core each. ``hosts``: two hosts with a core and two ranks each, joined by
200 Mbit/s and 2 ms (`benchmarks.two_hosts`; root). The profile is measured first, across the hosts,
and kept for later calls (``--profile``). Layouts are drawn with seed 0 from all valid ones, none
removed, and the planner's pick is added; all rounds of all are timed by ``shardwright trial
--compare``, so that every figure comes from what a user would run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.local_layouts import draw_layouts, ordered_pairs, rank_correlation
from benchmarks.two_hosts import EAGER, TwoHosts
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.planner.api import plan
from shardwright.planner.layout_text import parse_choices
from shardwright.planner.layouts import layout_in_words, layout_of
from shardwright.planner.problem import Problem
from shardwright.specs import Plan, SoftwareSpec, TrainingSpec
from shardwright.specs.sources import resolve_model

MODEL = Path(__file__).parents[1] / "examples" / "demo" / "config.json"
TRAINING = TrainingSpec.model_validate({"global_batch": 16, "seq_len": 256, "precision": "fp32"})
APART = 0.10
"""Pairs of layouts whose measured steps differ by more count."""
RANKS_PER_HOST = 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where commands run."""

    hosts: TwoHosts | None
    """None: on this machine itself."""

    def run(self, *arguments: str) -> str:
        """A command of ours, before all other work of this machine; what it printed."""
        words = ["-m", "shardwright", *arguments]
        if self.hosts is not None:
            return self.hosts.launch(words, ranks_per_host=RANKS_PER_HOST, eager=True)
        done = subprocess.run(
            [*(EAGER if os.geteuid() == 0 else ()), sys.executable, *words],
            stdout=subprocess.PIPE, text=True, check=True, start_new_session=True,
        )  # fmt: skip
        return done.stdout


def problem_on(path: Path) -> Problem:
    """The job on a profile."""
    text = path.read_text(encoding="utf-8")
    profile = HardwareProfile.from_json(text, source=str(path))
    return Problem(resolve_model(str(MODEL)), TRAINING, profile, SoftwareSpec())


def planned(problem: Problem, path: Path) -> Plan:
    """The planner's own answer, as ``plan --cluster PATH`` gives it."""
    answer = plan(
        model=problem.model, profile=problem.profile, training=problem.training,
        software=problem.software,
    )  # fmt: skip
    assert answer.plan is not None
    provenance = answer.plan.provenance.model_copy(update={"profile_source": str(path)})
    return answer.plan.model_copy(update={"provenance": provenance})


def timed(place: Place, made: Plan, texts: Sequence[str], rounds: int, steps: int) -> Any:
    """What ``trial --compare --json`` says of these layouts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made.save(folder / "plan.json")
        (folder / "layouts.json").write_text(json.dumps(list(texts)))
        return json.loads(place.run(
            "trial", str(folder / "plan.json"), "--compare", str(folder / "layouts.json"),
            "--rounds", f"{rounds}", "--steps", f"{rounds * steps}", "--json",
        ))  # fmt: skip


def report(answer: Any, problem: Problem, pick: str) -> list[str]:
    """The table and its summary, as lines of Markdown."""
    rows = answer["layouts"]
    lines = [
        f"Profile of {problem.profile.provenance.created_at}, {problem.cluster.in_words()}.", "",
        "| layout | predicted s | measured s | off | corrected | by the others |",
        "|---|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    for row in rows:
        measured = row["measured_step_time_s"]
        offs = [row[f"{when}_step_time_s"] / measured - 1
                for when in ("predicted", "corrected", "left_out")]  # fmt: skip
        mark = " (plan)" if row["layout"] == pick else ""
        lines.append(
            f"| {row['layout']}{mark} | {row['predicted_step_time_s']:.3f} | {measured:.3f} |"
            f" {offs[0]:+.1%} | {offs[1]:+.1%} | {offs[2]:+.1%} |"
        )
    lines += ["", f"{len(rows)} layouts, {answer['rounds']} rounds."]
    lines += [_errors(answer), *_order(rows, problem), _pick(rows, pick)]
    lines += [
        f"- {one['name']}: {one['before']:.3g} -> {one['after']:.3g}"
        for one in answer["correction"]["parameters"]
    ]
    return lines + [f"Not timed: {one['layout']}: {one['reason']}" for one in answer["failed"]]


def _errors(answer: Any) -> str:
    error = answer["correction"]["median_error"]
    return (
        f"Median error {error['before']:.1%}; {error['after']:.1%} after correction;"
        f" {error['left_out']:.1%} where the other layouts alone correct each."
    )


def _order(rows: Sequence[Any], problem: Problem) -> list[str]:
    lines = []
    near = [row for row in rows if keeps_tp_inside(row["layout"], problem)]
    for name, some in (("all", rows), ("those that keep tp inside a node", near)):
        measured = [row["measured_step_time_s"] for row in some]
        for when in ("predicted", "corrected"):
            said = [row[f"{when}_step_time_s"] for row in some]
            right, pairs = ordered_pairs(said, measured, APART)
            share = f"{right / pairs:.0%}" if pairs else "-"
            rho = rank_correlation(said, measured) if len(some) > 1 else 1.0
            lines.append(
                f"Order, {when}, {name} ({len(some)}): of {pairs} pairs more than {APART:.0%} apart"
                f" {right} are right ({share}); Spearman {rho:.2f}."
            )
    return lines


def keeps_tp_inside(text: str, problem: Problem) -> bool:
    """Whether no tensor-parallel group of a layout crosses nodes."""
    return layout_of(problem, parse_choices(text)).tp <= problem.cluster.groups[0].devices_per_node


def _pick(rows: Sequence[Any], pick: str) -> str:
    best, own = rows[0], next(row for row in rows if row["layout"] == pick)
    by_prediction = min(rows, key=lambda row: row["predicted_step_time_s"])
    return (
        f"Best measured: {best['layout']}, {best['measured_step_time_s']:.3f} s. The plan:"
        f" {own['ratio']:.3f} of it ({own['verdict']}). Best predicted of these:"
        f" {by_prediction['ratio']:.3f} ({by_prediction['verdict']})."
    )


def measured_profile(place: Place, path: Path, num_ranks: int) -> None:
    """Write the profile unless it is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        ranks = [] if place.hosts is not None else ["--ranks", f"{num_ranks}"]
        place.run("profile", "-o", str(path), *ranks)


def shortlist_trial(place: Place, made: Plan, problem: Problem) -> list[str]:
    """What a user's ``trial --top 3`` says."""
    with tempfile.TemporaryDirectory() as name:
        made.save(Path(name) / "plan.json")
        answer = json.loads(place.run("trial", f"{name}/plan.json", "--top", "3", "--json"))
    lines = ["", f"`trial --top 3`: {answer['rounds']} of {answer['most_rounds']} rounds."]
    for row in answer["layouts"]:
        low, high = row["ratio_interval"]
        times = [f"{seconds:.3f}" for seconds in row["round_times_s"]]
        lines.append(
            f"- {row['layout']}: {row['measured_step_time_s']:.3f} s, {row['ratio']:.3f}"
            f" ({low:.3f} to {high or float('inf'):.3f}), {row['verdict']};"
            f" spread {statistics.pstdev(map(float, times)) if len(times) > 1 else 0:.3f} s"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("where", choices=("cores", "hosts"))
    parser.add_argument("--layouts", type=int, default=14)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1, help="timed steps in each round")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--top", action="store_true", help="also a trial of the plan's shortlist")
    parser.add_argument("-o", "--out", type=Path, help="keep the JSON of the trial")
    options = parser.parse_args()
    path = options.profile or Path(f".shardwright/trial-profile-{options.where}.json")
    if options.where == "hosts":
        with TwoHosts() as hosts:
            lines = bench(Place(hosts), path, options)
    else:
        lines = bench(Place(None), path, options)
    sys.stdout.write("\n".join(lines) + "\n")


def bench(place: Place, path: Path, options: argparse.Namespace) -> list[str]:
    """Profile, plan, draw, time, report."""
    path = path.absolute()
    measured_profile(place, path, 2)
    problem = problem_on(path)
    made = planned(problem, path)
    texts = [layout_in_words(one) for one in draw_layouts(problem, options.layouts)]
    pick = layout_in_words(made.layout)
    texts += [pick] if pick not in texts else []
    answer = timed(place, made, texts, options.rounds, options.steps)
    if options.out:
        options.out.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    lines = report(answer, problem, pick)
    return lines + (shortlist_trial(place, made, problem) if options.top else [])


if __name__ == "__main__":
    main()
