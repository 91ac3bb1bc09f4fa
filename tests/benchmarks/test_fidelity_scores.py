from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.fidelity_scores import (
    Anchored,
    Refitting,
    WithoutLayers,
    anchor_all,
    gather,
    is_ampere_or_hopper,
    is_blackwell,
    is_large,
    pooled,
    price_sweeps,
    weighted_quantile,
)
from shardwright.hardware_profiles.stacks import fitted
from shardwright.planner.validation.choose import Pricer
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import Job, Skip, evaluate, prepare
from shardwright.planner.validation.stack_fits import StackPricer, StackStudy, run_defaults
from tests.planner.validation import rows
from tests.planner.validation.fakes import FakePricer, prediction

TWO_SECONDS = FakePricer(lambda model, layout: prediction(2.0))


def items(*changes: dict[str, Any]) -> list[Job | Skip]:
    found = [rows.row(**({"id": f"r{n}"} | change)) for n, change in enumerate(changes)]
    return list(prepare(found, CaseMaker(defaults=run_defaults)))


def sweep(problem: str, gpus: int = 8, **changes: Any) -> dict[str, Any]:
    """A row of a problem, on as many replicas as there are GPUs for."""
    layout = {"tp": 2, "pp": 1, "dp": gpus // 2, "global_batch": 2 * gpus, "num_microbatches": None,
              "schedule": None, "zero": 0}  # fmt: skip
    return {"problem": problem, "hardware": {"gpus": gpus}, "parallel": layout} | changes


@dataclass
class Watching:
    """A fitter that remembers what it was fitted to."""

    seen: list[set[str | None]] = field(default_factory=list)

    def fit(self, jobs: Sequence[Job], *, unseen: Sequence[Job] = ()) -> Pricer:
        self.seen.append({job.row.problem for job in jobs})
        return TWO_SECONDS


class TestSweeps:
    def test_no_row_is_priced_by_a_model_that_saw_its_problem(self) -> None:
        fitter = Watching()
        small = [sweep(f"small-{n}") for n in range(6) for _ in range(2)]
        large = [sweep(f"large-{n}", 64) for n in range(2)]
        found = price_sweeps(items(*small, *large), fitter)
        assert len(found.small) == 12
        assert len(found.large) == 2
        everything = {f"small-{n}" for n in range(6)} | {"large-0", "large-1"}
        assert [everything - seen for seen in fitter.seen[:2]] == [{"large-0"}, {"large-1"}]
        held_out = [{f"small-{n}" for n in range(6)} - seen for seen in fitter.seen[2:]]
        assert sum(len(part) for part in held_out) == 6
        assert all(not any("large" in str(name) for name in seen) for seen in fitter.seen[2:])

    def test_large_is_more_than_eight(self) -> None:
        eight, sixteen = items(sweep("a", 8), sweep("b", 16))
        assert not is_large(eight)
        assert is_large(sixteen)


def test_without_layers_a_model_knows_the_few_parameters_alone() -> None:
    known = fitted().model_copy(update={"layers": {"s": {"layer.h8": 1.1}}})

    class Fixed:
        def fit(self, jobs: Sequence[Job], *, unseen: Sequence[Job] = ()) -> Pricer:
            return StackPricer(known)

    found = WithoutLayers(Fixed()).fit([])
    assert isinstance(found, StackPricer)
    assert found.known is not None
    assert found.known.layers == {}
    assert found.known.kernels == known.kernels
    assert WithoutLayers(Watching()).fit([]) is TWO_SECONDS


class TestRefitting:
    def test_what_is_left_out_has_no_part(self) -> None:
        """However slow the other stack ran, nothing changes for those that did not see it."""
        kept = [{"stack": "a", "measured": {"iteration_time_s": 1.0}} for _ in range(2)]
        found = []
        for seconds in (1.0, 1.5):
            made = items(*kept, {"stack": "b", "measured": {"iteration_time_s": seconds}})
            jobs = [item for item in made if isinstance(item, Job)]
            study = StackStudy(jobs, rounds=1)
            found.append((study, Refitting(study).fit(jobs[:2]).known))
        (one, first), (other, second) = found
        assert first is not None
        assert second is not None
        assert set(first.stacks) == {"a"}
        for name, value in first.stacks["a"].items():
            assert second.stacks["a"][name] == pytest.approx(value, rel=0.01)
        learned = [study.made[2].values("stack:b")["stack.host_s"] for study in (one, other)]
        assert learned[1] != pytest.approx(learned[0], rel=0.01)

    def test_equal_parts_are_fitted_once(self) -> None:
        jobs = [item for item in items({}, {"stack": "b"}) if isinstance(item, Job)]
        fitter = Refitting(StackStudy(jobs, rounds=1))
        assert fitter.fit(jobs[:1]).known is fitter.fit(jobs[:1]).known


class TestAnchors:
    def test_every_run_is_chosen_and_the_others_scored(self) -> None:
        made = items(*({"stack": s, "parallel": {"micro_batch": m, "num_microbatches": None}}
                       for s in ("a", "b") for m in (1, 2)), {"stack": "c"})  # fmt: skip
        jobs = [item for item in made if isinstance(item, Job)]
        fitter = Refitting(StackStudy(jobs, rounds=1))
        found = {part.stack: part for part in anchor_all(made, fitter)}
        assert [len(found[s].choices) for s in "abc"] == [2, 2, 0]
        assert [row.id for choice in found["a"].choices for row in choice] == ["r1", "r0"]

    def test_a_skipped_row_counts_as_an_error_of_one(self) -> None:
        (right, wrong) = evaluate(
            items({"measured": {"iteration_time_s": 2.0}}, {"measured": {"iteration_time_s": 1.0}}),
            TWO_SECONDS,
        )
        part = Anchored("s", 3, 1, ((right,), (wrong,)))
        assert [errors.mape for errors in part.errors] == [0.5, 1.0]
        assert sorted(pooled([part])) == [(0.0, 1.0), (1.0, 1.0), (1.0, 1.0)]

    def test_stacks_that_could_not_be_anchored_are_not_pooled(self) -> None:
        assert pooled([Anchored("s", 1, 0, ())]) == []


class TestQuantile:
    def test_by_weight(self) -> None:
        pairs = [(3.0, 1.0), (1.0, 1.0), (2.0, 8.0)]
        assert weighted_quantile(pairs, 0.1) == 1.0
        assert weighted_quantile(pairs, 0.5) == 2.0
        assert weighted_quantile(pairs, 0.9) == 2.0
        assert weighted_quantile(pairs, 0.95) == 3.0

    def test_of_nothing(self) -> None:
        assert weighted_quantile([], 0.5) is None


@pytest.mark.parametrize(
    ("accelerator", "is_new", "is_old"),
    [("GB300", True, False), ("B200-SXM-180GB", True, False), ("H100-SXM5-80GB", False, True),
     ("A100-SXM4-40GB", False, True), ("V100-SXM2-32GB", False, False), (None, False, False)],
)  # fmt: skip
def test_generations(accelerator: str | None, is_new: bool, is_old: bool) -> None:
    (result,) = evaluate(items({}), TWO_SECONDS)
    named = result.__class__(**{
        name: getattr(result, name) for name in result.__dataclass_fields__
    } | {"accelerator": accelerator})  # fmt: skip
    assert is_blackwell(named) is is_new
    assert is_ampere_or_hopper(named) is is_old


def test_all_is_gathered_from_one_fit() -> None:
    published = items({"stack": "a"}, {"stack": "b"}, {"stack": "a", "model": {"layers": 8}})
    sweeps = items(sweep("small"), sweep("large", 64))
    doing: list[str] = []
    found = gather(published, sweeps, progress=doing.append)
    assert doing[0] == "fitting"
    assert [result.id for result in found.unseen_stack.results] == ["r0", "r1", "r2"]
    assert len(found.unseen_model.folds) == 3
    assert len(found.catalogue) == 3
    assert len(found.sweeps.small) == len(found.sweeps.large) == 1
    assert all(result.skipped is None for result in found.unseen_stack.results)
