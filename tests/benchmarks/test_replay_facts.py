"""The restated trials are those of the data that they were taken from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay_facts import ELSEWHERE, STACK, launched, numbers, shape_in_words, trials
from shardwright.hardware_profiles.stacks import fitted
from shardwright.planner.validation.clusters import profile_of
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import Job, prepare
from shardwright.planner.validation.rows import Row, parse_rows
from shardwright.planner.validation.shapes import Assumptions
from shardwright.planner.validation.stack_fits import StackPricer, run_defaults

DATA = Path("../shared/data/published_runs.json")
FEWEST_GPUS = 320


def what_counts(row: Row) -> dict[str, Any]:
    """All that pricing and scoring read, but names and remarks."""
    model, parallel = row.model, row.parallel
    return {
        "model": model.model_dump(exclude={"name", "other"}),
        "parallel": parallel.model_dump(exclude={"as_printed", "other", "num_microbatches"}),
        "gpus": row.num_gpus,
        "per_node": row.hardware.gpus_per_node,
        "cluster": profile_of(row, Assumptions()).devices.model_dump(),
        "is_oom": row.is_oom,
        "step_s": row.step_time_s,
        "peak": row.peak_memory_bytes,
        "kind": row.kind_of_memory if row.peak_memory_bytes else None,
        "section": (row.problem or "")
        .removeprefix(f"{STACK}|")
        .partition("|")[0]
        .partition(":")[0],
    }


@pytest.mark.skipif(not DATA.exists(), reason="the published runs are not there")
def test_every_trial_is_a_row_of_the_data_and_none_is_missing() -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    wanted = [
        row for row in parse_rows([one for one in data if one["id"].startswith("bloom-prequel")])
        if isinstance(row, Row) and (row.num_gpus or 0) >= FEWEST_GPUS and row.model.layers
    ]  # fmt: skip
    ours, theirs = (
        sorted(map(what_counts, some), key=lambda one: json.dumps(one, sort_keys=True))
        for some in ([one.row for one in trials()], wanted)
    )
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == other


@pytest.mark.skipif(not DATA.exists(), reason="the published runs are not there")
def test_embedding_stands_for_a_layer_where_the_data_says_so() -> None:
    """Also in the shape before, where 106 layers on 12 stages would not divide otherwise."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    said = [one for one in data if "embedding counted" in str(one["parallel"].get("other"))]
    wanted = sum(one["id"].startswith("bloom-prequel") for one in said)
    before = [one for one in trials() if one.balances_embedding and one.section == "Re-do"]
    assert {one.row.model.layers for one in before} == {106}
    assert sum(one.balances_embedding for one in trials()) == wanted + len(before)


@pytest.mark.skipif(not DATA.exists(), reason="the published runs are not there")
def test_each_line_of_the_chronicle_is_right() -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    text = Path("benchmarks/replay_runs.toml").read_text(encoding="utf-8")
    pages = [one["paper_or_page"] for one in data if one["id"].startswith("bloom-prequel")]
    stated = {page.rpartition("line ")[2] for page in pages}
    ours = [line.rpartition("line = ")[2].partition(" ")[0] for line in text.splitlines()
            if "line = " in line]  # fmt: skip
    assert len(ours) == len(trials())
    assert set(ours) <= stated


def test_trials_are_unique_and_the_batch_divides() -> None:
    found = trials()
    assert len({one.row.id for one in found}) == len(found) == 69
    assert sum(one.row.is_oom for one in found) == 2
    for row in (*(one.row for one in found), launched().row):
        parallel = row.parallel
        assert parallel.tp and parallel.pp and parallel.dp  # noqa: PT018
        assert parallel.micro_batch and parallel.global_batch  # noqa: PT018
        assert parallel.tp * parallel.pp * parallel.dp == row.num_gpus
        assert row.num_gpus in (320, 384)
        if row.step_time_s:
            assert parallel.global_batch % (parallel.dp * parallel.micro_batch) == 0, row.id


def test_every_trial_has_one_layout() -> None:
    items = prepare([one.row for one in trials()], CaseMaker(defaults=run_defaults))
    assert all(isinstance(item, Job) and len(item.layouts) == 1 for item in items)


class TestNumbers:
    def test_elsewhere_the_software_was_run_but_not_by_big_science(self) -> None:
        known = numbers(ELSEWHERE)
        assert "none of BigScience's sweep" in known.fitted_from
        assert known.num_runs[STACK] == 3  # MT-NLG's
        assert known.stacks[STACK] != fitted().stacks[STACK]

    def test_they_know_no_run_of_that_software(self) -> None:
        known = numbers()
        assert f"none of {STACK}" in known.fitted_from
        for name in (*known.stacks, *known.num_runs, *known.layers):
            assert not name.startswith(STACK), name

    def test_they_price_it_as_software_that_nobody_has_seen(self) -> None:
        known = numbers()
        (job,) = prepare([trials()[0].row], CaseMaker(defaults=run_defaults))
        assert isinstance(job, Job)
        case = job.case
        model = StackPricer(known)(case.model, case.training, case.profile, case.software)
        for name, (centre, _) in known.population.items():
            assert model.parameters[name] == centre
        assert model.parameters["band.low_ratio"] == known.band_unseen.low


def test_the_shape_in_words() -> None:
    assert shape_in_words(launched().row) == "70 x 14336, 112 heads"
    assert shape_in_words(trials()[0].row) == "80 x 14400, ? heads"
