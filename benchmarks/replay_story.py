"""What a replay found: predictions and plans beside the trials that were hidden from them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from benchmarks.replay_facts import Trial
from benchmarks.replay_scores import (
    Counted,
    Fate,
    Grid,
    MeanSummary,
    Summary,
    best_of,
    fate_of,
    micro_batch_pairs,
    order_by_difference,
    picks,
    rule_pick,
    summary,
)
from shardwright.planner.validation.results import RowResult
from shardwright.planner.validation.scores import problem_scores
from shardwright.specs import Candidate


@dataclass(frozen=True, slots=True)
class Answer:
    """One shape of a section: its plans, and the trials that were hidden while they were made."""

    problem: str
    trials: tuple[Trial, ...]
    plan: Candidate | None
    """With everything computed again, as every trial did."""
    unrecomputed: Candidate | None
    """With nothing computed again, which nobody tried; None where that does not fit."""
    rule: Candidate | None
    """By "tp8 first"."""

    @property
    def fate(self) -> Fate | None:
        return None if self.plan is None else fate_of(Grid.of(self.plan.layout), self.trials)

    @property
    def best(self) -> Trial | None:
        return best_of(self.trials)

    @property
    def num_timed(self) -> int:
        return sum(one.row.step_time_s is not None for one in self.trials)


@dataclass(frozen=True)
class Story:
    """The whole replay."""

    trials: tuple[Trial, ...]
    unseen: tuple[RowResult, ...]
    """Priced without any run of the software."""
    answers: tuple[Answer, ...]
    anchored: MeanSummary
    """After one trial; means over which."""
    anchored_means_s: Mapping[str, float]
    """Of each trial, the mean of its predictions by models that saw one other trial."""
    elsewhere: Summary
    """With the numbers that runs of the software by others gave."""
    catalogue: Summary
    """With the catalogue's numbers, which saw the sweep."""
    launched: Answer
    """The model that was trained."""
    launched_result: RowResult
    """Its own layout, priced without any run of the software."""

    @cached_property
    def unseen_summary(self) -> Summary:
        return summary(self.trials, self.unseen)

    @cached_property
    def predicted_s(self) -> Mapping[str, float]:
        """Of each trial, without any run of the software, by id."""
        return {one.id: one.predicted_step_time_s or 0.0 for one in self.unseen}

    @cached_property
    def picked(self) -> Mapping[str, Trial]:
        """Of each job the trial that is predicted the fastest."""
        by_id = {trial.row.id: trial for trial in self.trials}
        return {key: by_id[one] for key, one in picks(problem_scores(self.unseen)).items()}

    @cached_property
    def ruled(self) -> Mapping[str, Trial]:
        """Of each job the trial of "tp8 first"."""
        found = {one.problem: rule_pick(one.trials) for one in self.answers}
        return {key: trial for key, trial in found.items() if trial is not None}

    @cached_property
    def by_difference(self) -> Mapping[str, Counted]:
        """Order of pairs of one job, by what sets them apart."""
        return order_by_difference(self.trials, self.predicted_s)

    @cached_property
    def larger_micro_batch(self) -> tuple[float, float]:
        """Of trials with tp 8 that differ in the micro-batch alone: the step with 4 sequences over
        that with 2, in the median; measured, and predicted."""
        predicted = self.predicted_s
        measured = {one.row.id: one.row.step_time_s or 0.0 for one in self.trials}
        pairs = micro_batch_pairs(self.trials, 2, 4)
        return (
            statistics.median(measured[b.row.id] / measured[a.row.id] for a, b in pairs),
            statistics.median(predicted[b.row.id] / predicted[a.row.id] for a, b in pairs),
        )

    @property
    def choices(self) -> list[Answer]:
        """Shapes with several timed trials."""
        return [one for one in self.answers if one.num_timed > 1]
