"""What a trial's ranks are told and do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardwright.hardware_profiles.discover import local_cluster
from shardwright.runtime.trial import (
    VISITS_FILE,
    Entry,
    Failure,
    TrialJob,
    Visit,
    read_visits,
    terms_of,
    visited_last,
)
from tests.runtime.plans import plan_of, small_model

CHOICES: tuple[dict[str, Any], ...] = (
    {"tp": 2, "micro_batch": 4},
    {"pp": 2, "micro_batch": 2},
    {"dp": 2, "micro_batch": 2, "zero": 3},
)


def job(**further: Any) -> TrialJob:
    cluster = local_cluster(2)
    plans = [plan_of(small_model(num_layers=2), cluster=cluster, **one) for one in CHOICES]
    entries = tuple(Entry(layout=one.layout, prediction=one.prediction) for one in plans)
    return TrialJob(**{"plan": plans[0], "entries": entries, "num_rounds": 4, **further})


def visit(index: int, *times_s: float) -> Visit:
    return Visit(index=index, step_times_s=times_s, terms_s=({"tp_comm": times_s[0]},) * 2)


def test_a_round_is_the_median_of_a_visit_s_steps() -> None:
    found = job(visits=(visit(1, 3.0, 1.0, 2.0), visit(1, 4.0, 6.0)))
    assert found.round_times_s() == [[], [2.0, 5.0], []]


def test_all_run_until_each_has_been_seen() -> None:
    assert job().running() == [0, 1, 2]
    assert job(visits=(visit(0, 1.0),)).running() == [0, 1, 2]


def test_a_race_drops_what_lost_and_a_comparison_does_not() -> None:
    visits = tuple(
        visit(index, seconds)
        for round_s in ((1.0, 1.02, 5.0), (1.01, 1.0, 5.0), (1.0, 1.01, 5.01))
        for index, seconds in enumerate(round_s)
    )
    assert job(visits=visits).running() == [0, 1]
    assert job(visits=visits, races=False).running() == [0, 1, 2]


def test_a_layout_that_failed_does_not_run_and_does_not_count() -> None:
    failed = (Failure(index=0, reason="out of memory"),)
    visits = tuple(visit(index, 1.0 + index) for _ in range(4) for index in range(3))
    found = job(visits=visits, failures=failed)
    assert found.running() == []
    assert [one.index for one in found.race().standings()] == [1, 2]


def test_terms_are_medians_over_visits() -> None:
    found = job(visits=(visit(2, 1.0), visit(2, 9.0), visit(2, 2.0), visit(1, 7.0)))
    assert [row["tp_comm"] for row in terms_of(found, 2)] == [2.0, 2.0]


def test_layouts_stay_built_where_all_fit() -> None:
    found = job()
    assert found.keeps_layouts()
    small = [
        one.model_copy(
            update={"prediction": one.prediction.model_copy(update={"memory_capacity_bytes": 1})}
        )
        for one in found.entries
    ]
    assert not found.model_copy(update={"entries": tuple(small)}).keeps_layouts()


def test_visits_are_read_up_to_a_line_that_was_cut_short(tmp_path: Path) -> None:
    assert list(read_visits(tmp_path)) == []
    whole = visit(1, 2.0).model_dump_json()
    (tmp_path / VISITS_FILE).write_text(f"{whole}\n{whole[:20]}", encoding="utf-8")
    assert list(read_visits(tmp_path)) == [visit(1, 2.0)]


@pytest.mark.parametrize(("text", "index"), [("2", 2), ("", None)])
def test_where_a_rank_was(tmp_path: Path, text: str, index: int | None) -> None:
    assert visited_last(tmp_path, 0) is None
    (tmp_path / "visiting-0").write_text(text)
    assert visited_last(tmp_path, 0) == index
