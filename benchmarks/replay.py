"""BigScience's sweep of layouts before BLOOM, replayed: planned first, then held against it.

    python -m benchmarks.replay [--write]

Every measurement is hidden while each shape is planned; then the trials are revealed. The numbers
of the cost model come from all published runs but those of Megatron-DeepSpeed
(`benchmarks.replay_fit`), so that neither the sweep nor its software was seen. The trials are in
``benchmarks/replay_runs.toml``. With ``--write``: ``docs/explanation/replay.md`` and its plot.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.replay_facts import (
    ELSEWHERE,
    FIXED,
    FORBIDDEN,
    GPUS_PER_NODE,
    Trial,
    launched,
    numbers,
    trials,
)
from benchmarks.replay_plot import draw
from benchmarks.replay_report import page, screen
from benchmarks.replay_scores import MeanSummary, by_problem, summary
from benchmarks.replay_story import Answer, Story
from shardwright.hardware_profiles.profile import HardwareProfile, Parameter
from shardwright.hardware_profiles.stacks import Fitted, stack_parameters
from shardwright.planner.engine import Engine, engine_for
from shardwright.planner.layouts import layout_of
from shardwright.planner.problem import ChoiceValue, Constraints, Problem
from shardwright.planner.validation.pricers import Remembering
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import Job, RowResult, evaluate, prepare
from shardwright.planner.validation.stack_fits import StackPricer, calibrated, run_defaults
from shardwright.specs import (
    AttentionBlock,
    Candidate,
    InputError,
    Layout,
    SoftwareSpec,
)
from shardwright.specs.world import divisors

PAGE = Path("docs/explanation/replay.md")
PLOT = Path("docs/explanation/replay/replay.svg")


def jobs_of(asked: Sequence[Trial]) -> list[Job]:
    """Trials as jobs, in order."""
    items = prepare([trial.row for trial in asked], CaseMaker(defaults=run_defaults))
    jobs = [item for item in items if isinstance(item, Job)]
    assert len(jobs) == len(asked), [item for item in items if not isinstance(item, Job)]
    return jobs


def question_of(job: Job, known: Fitted) -> Problem:
    """What the planner is asked: the job without its layout and without any measurement."""
    case = job.case
    profile = with_numbers(case.profile, case.software, known)
    return Problem(case.model, case.training, profile, case.software)


def with_numbers(
    profile: HardwareProfile, software: SoftwareSpec, known: Fitted
) -> HardwareProfile:
    """The cluster as if it had been calibrated: these numbers in place of the catalogue's."""
    own = {one.name for one in profile.parameters}
    values = stack_parameters(software.framework, profile, known)
    band = {name: values[name] for name in values if name.startswith("band.")}
    kept = [one for one in profile.parameters if one.name not in band]
    given = {name: value for name, value in values.items() if name not in own} | band
    learned = [
        Parameter(name=name, value=value, unit="1", kind="derived", fitted_from=known.fitted_from)
        for name, value in given.items()
    ]
    return profile.model_copy(update={"parameters": (*kept, *learned), "software": software})


# Plans


def even_stages(num_layers: int, num_gpus: int) -> Iterator[tuple[int, ...]]:
    """The layers at which stages stop, for every pipeline on so many GPUs that deals layers out
    evenly."""
    for pp in divisors(num_layers):
        if num_gpus % pp == 0:
            each = num_layers // pp
            yield tuple(range(each, num_layers + 1, each))


def balanced_stages(num_layers: int, num_gpus: int) -> Iterator[tuple[int, ...]]:
    """The same with embedding and head counted as a layer each."""
    for pp in divisors(num_layers + 2):
        each = (num_layers + 2) // pp
        if pp > 1 and each > 1 and num_gpus % pp == 0:
            yield (*range(each - 1, num_layers, each), num_layers)


@dataclass(frozen=True)
class Planner:
    """Plans one shape within what the software of the sweep could run."""

    engine: Engine
    problem: Problem
    balances_embedding: bool

    @classmethod
    def of(cls, trial: Trial, job: Job, known: Fitted) -> Planner:
        problem = question_of(job, known)
        return cls(engine_for(problem), problem, trial.balances_embedding)

    def best(self, fixed: Mapping[str, ChoiceValue] = FIXED) -> Candidate | None:
        """The layout with the shortest predicted step; None where nothing fits."""
        return self._shortest(fixed)

    def by_rule(self) -> Candidate | None:
        """The layout of "tp8 first": the fewest stages that fit, then the largest micro-batch."""
        world, batch = self.problem.world, self.problem.training.global_batch
        nodes = world // GPUS_PER_NODE
        stops = [*even_stages(self.problem.num_layers, nodes), *self._balanced(nodes)]
        for stages in sorted(stops, key=len):
            dp = nodes // len(stages)
            for micro_batch in (16, 8, 4, 2, 1):
                if batch % (dp * micro_batch) == 0:
                    layout = self._ruled(stages, micro_batch)
                    prediction = self.engine.predict(layout)
                    if prediction.memory_verdict == "fits":
                        return Candidate(layout=layout, prediction=prediction)
        return None

    def _ruled(self, stages: tuple[int, ...], micro_batch: int) -> Layout:
        dp = self.problem.world // (GPUS_PER_NODE * len(stages))
        choices: dict[str, ChoiceValue] = {
            **FIXED, "tp": GPUS_PER_NODE, "stages": stages, "micro_batch": micro_batch,
            "zero": int(dp > 1),
        }  # fmt: skip
        if len(stages) > 1:
            choices["schedule"] = "1f1b"
        return layout_of(self.problem, choices)

    def _shortest(self, fixed: Mapping[str, ChoiceValue]) -> Candidate | None:
        found = [self._search(fixed)]
        found += [
            self._search({**fixed, "stages": stages}, without_uneven=False)
            for stages in self._balanced(self.problem.world)
        ]
        fitting = [one for one in found if one is not None]
        return min(fitting, key=lambda one: one.prediction.step_time_s, default=None)

    def _balanced(self, num_gpus: int) -> Iterator[tuple[int, ...]]:
        if self.balances_embedding:
            yield from balanced_stages(self.problem.num_layers, num_gpus)

    def _search(
        self, fixed: Mapping[str, ChoiceValue], *, without_uneven: bool = True
    ) -> Candidate | None:
        forbidden = {*FORBIDDEN, *self._impossible_tps}
        if not without_uneven:
            forbidden.discard("uneven_stages")
        constraints = Constraints(fixed=fixed, forbidden=frozenset(forbidden), top=1)
        try:
            found = self.engine.search(constraints)
        except InputError:  # the batch or the stages leave no layout
            return None
        return found.ranking[0] if found.ranking else None

    @property
    def _impossible_tps(self) -> set[str]:
        """Megatron-LM of the time gives every rank of a node as many whole heads."""
        heads = {
            branch.body.num_heads
            for layer in self.problem.model.decoder.layers()
            for branch in layer.branches
            if isinstance(branch.body, AttentionBlock)
        }
        return {
            f"tp={tp}" for tp in divisors(self.problem.world)
            if tp > GPUS_PER_NODE or any(count % tp for count in heads)
        }  # fmt: skip


def answers(asked: Sequence[Trial], jobs: Sequence[Job], known: Fitted) -> list[Answer]:
    """A plan for every shape of the sweep; equal jobs of several sections are planned once."""
    planned: dict[object, tuple[Candidate | None, Candidate | None, Candidate | None]] = {}
    first = {trial.row.id: (trial, job) for trial, job in zip(asked, jobs, strict=True)}
    found = []
    for problem, group in by_problem(asked).items():
        trial, job = first[group[0].row.id]
        case = job.case
        key = (case.model.content_hash(), case.training, case.num_gpus, trial.balances_embedding)
        if key not in planned:
            planner = Planner.of(trial, job, known)
            free = {name: value for name, value in FIXED.items() if name != "recompute"}
            unrecomputed = planner.best({**free, "recompute": "none"})
            planned[key] = planner.best(), unrecomputed, planner.by_rule()
        found.append(Answer(problem, tuple(group), *planned[key]))
    return found


# Everything


def after_one_trial(
    asked: Sequence[Trial], jobs: Sequence[Job], known: Fitted
) -> tuple[MeanSummary, dict[str, float]]:
    """Calibrated on each timed trial in turn, all others scored; and of each trial its mean
    prediction, in seconds, over the choices of the others."""
    timed = [index for index, job in enumerate(jobs) if job.row.step_time_s]
    summaries, sums = [], dict.fromkeys((job.row.id for job in jobs), 0.0)
    for chosen in timed:
        rest = [index for index in range(len(jobs)) if index != chosen]
        pricer = Remembering.of(calibrated([jobs[chosen]], known))
        results = evaluate([jobs[i] for i in rest], pricer)
        summaries.append(summary([asked[i] for i in rest], results))
        for result in results:
            sums[result.id] += result.predicted_step_time_s or 0.0
    means = {
        job.row.id: sums[job.row.id] / (len(timed) - bool(job.row.step_time_s)) for job in jobs
    }
    return MeanSummary.of(summaries), means


def replay() -> Story:
    """The whole replay; takes some 20 s of CPU time."""
    asked, known = trials(), numbers()
    jobs = jobs_of(asked)
    unseen: list[RowResult] = evaluate(jobs, StackPricer(known))
    anchored, means = after_one_trial(asked, jobs, known)
    last = [launched()]
    last_jobs = jobs_of(last)
    return Story(
        asked,
        tuple(unseen),
        tuple(answers(asked, jobs, known)),
        anchored,
        means,
        summary(asked, evaluate(jobs, StackPricer(numbers(ELSEWHERE)))),
        summary(asked, evaluate(jobs, StackPricer())),
        answers(last, last_jobs, known)[0],
        evaluate(last_jobs, StackPricer(known))[0],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="BigScience's sweep of layouts, replayed.")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE} and {PLOT}")
    asked = parser.parse_args(arguments)
    story = replay()
    sys.stdout.write(screen(story))
    if asked.write:
        PLOT.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(story), encoding="utf-8")
        PLOT.write_text(draw(story), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
