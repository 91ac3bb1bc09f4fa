"""A picked plan is the plan with another layout, and can be read back."""

from __future__ import annotations

from shardwright.planner.trials.pick import plan_of_pick, priced_by
from shardwright.specs import Candidate, Plan
from tests.runtime.plans import plan_of


def _candidate(plan: Plan) -> Candidate:
    return Candidate(layout=plan.layout, prediction=plan.prediction)


def test_the_layout_brings_its_schedule() -> None:
    plan, other = plan_of(tp=4, micro_batch=4), plan_of(pp=4, micro_batch=2)
    made = plan_of_pick(
        plan, _candidate(other), ties=[_candidate(plan)], others=[], command="typed"
    )
    assert made.layout == other.layout
    assert made.schedule == other.schedule
    assert made.ties == (_candidate(plan),)
    assert made.certificate == plan.certificate
    assert made.provenance.command == "typed"
    assert made.provenance.profile_source == plan.provenance.profile_source
    assert Plan.from_json(made.to_json()) == made


def test_it_names_the_profile_that_priced_it() -> None:
    made = priced_by(plan_of(), "f" * 64, "corrected.json")
    assert made.provenance.profile_hash == "f" * 64
    assert made.provenance.profile_source == "corrected.json"
