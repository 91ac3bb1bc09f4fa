from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import replay_fit
from benchmarks.replay_fit import fit_rest, without_software, without_sweep
from shardwright.hardware_profiles.stacks import Fitted, fitted
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import Job, Skip, prepare
from shardwright.planner.validation.rows import Unreadable
from shardwright.planner.validation.stack_fits import run_defaults
from tests.planner.validation import rows


def items(*stacks: str) -> list[Job | Skip]:
    made = [rows.row(id=f"{number} {name}", stack=name) for number, name in enumerate(stacks)]
    return list(prepare(made, CaseMaker(defaults=run_defaults)))


def test_no_run_of_the_software_is_kept() -> None:
    found = items("megatron-deepspeed", "megatron-lm-2021", "torchtitan", "megatron-deepspeed")
    found.append(Skip(Unreadable("x", "no row"), "no row"))
    assert [one.row.id for one in without_software(found)] == ["1 megatron-lm-2021", "2 torchtitan"]


def test_elsewhere_the_software_stays() -> None:
    found = items("megatron-deepspeed")
    row = rows.row(id="bloom-prequel-001", stack="megatron-deepspeed")
    assert isinstance(found[0].row, type(row))
    found.append(Skip(row, "BigScience's"))
    assert [one.row.id for one in without_sweep(found)] == ["0 megatron-deepspeed"]


def test_the_fit_sees_the_rest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def fake(all_items: Sequence[Job | Skip], published: Sequence[Job | Skip]) -> Fitted:
        seen.extend([[one.row.id for one in some] for some in (all_items, published)])
        return fitted()

    monkeypatch.setattr(replay_fit, "fit_catalogue", fake)
    found = fit_rest(
        items("torchtitan", "megatron-deepspeed"), items("megatron-deepspeed"), "none of it",
        without_software,
    )  # fmt: skip
    assert seen == [["0 torchtitan"], ["0 torchtitan"]]
    assert found.fitted_from == "benchmarks/replay_fit.py: 1 runs, none of it"


def test_it_writes_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay_fit, "read_jobs", lambda paths: [])
    monkeypatch.setattr(replay_fit, "fit_rest", lambda *_: fitted())
    target = tmp_path / "numbers.json"
    monkeypatch.setattr(replay_fit, "WAYS", {target: ("nothing", without_sweep)})
    assert replay_fit.main(["runs.json"]) == 0
    assert not target.exists()
    printed = capsys.readouterr().out
    assert replay_fit.main(["runs.json", "--write"]) == 0
    assert target.read_text(encoding="utf-8") == printed
    assert Fitted.model_validate(json.loads(printed)) == fitted()
