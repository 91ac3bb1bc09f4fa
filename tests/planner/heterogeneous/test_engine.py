"""Plans over unequal groups are no worse than simpler uses, or say why; prices are reproducible."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.api import plan
from shardwright.planner.bounds_text import parse_bounds
from shardwright.planner.engine import engine_for
from shardwright.planner.explain import explain, why_not
from shardwright.planner.heterogeneous.engine import HeterogeneousEngine, first_fitting
from shardwright.planner.heterogeneous.words import num_groups
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.search import Progress
from shardwright.specs import Candidate, Plan, SoftwareSpec, TrainingSpec
from shardwright.specs.meshes import replica_sets
from shardwright.specs.sources import resolve_model
from tests.planner.heterogeneous.small import FAST, SLOW, nodes, problem

UNEQUAL = "dgx-a100-80gb:1+dgx-1v-32gb:1,between=100Gbit/s"
TWO_SITES = "dgx-a100-80gb:1+dgx-a100-80gb:1,between=10Gbit/s,latency=5ms"


def asked(model: str, cluster: str, batch: int, precision: str = "fp16") -> Problem:
    training = TrainingSpec.model_validate(
        {"global_batch": batch, "seq_len": 1024, "precision": precision}
    )
    software = SoftwareSpec(framework="generic")
    return Problem(resolve_model(model), training, resolve_cluster(cluster), software)


@cache
def planned(cluster: str, batch: int, precision: str = "fp16") -> Plan:
    made = asked("gpt2-medium", cluster, batch, precision)
    answer = plan(
        model=made.model, training=made.training, profile=made.profile, software=made.software
    )
    assert answer.plan is not None
    return answer.plan


def steps(found: Plan) -> dict[str, float | None]:
    return {
        one.name: None if one.candidate is None else one.candidate.prediction.step_time_s
        for one in found.baselines
    }


def test_fast_and_slow_devices_together_beat_both_simpler_uses() -> None:
    found = planned(UNEQUAL, 512)
    assert found.certificate.optimal
    known = steps(found)
    assert set(known) == {
        "only dgx-a100-80gb", "only dgx-1v-32gb", "all devices as v100-sxm2-32gb"
    }  # fmt: skip
    for step_s in known.values():
        assert step_s is not None
        assert found.prediction.step_time_s < step_s
    assert num_groups(found, found.layout) == 2
    lines = explain(found).lines()
    assert any("only dgx-a100-80gb" in line and "slower" in line for line in lines)
    assert any("8 x v100-sxm2-32gb" in line for line in lines)


def test_over_a_line_that_is_too_slow_the_plan_is_one_site_and_says_why() -> None:
    found = planned(TWO_SITES, 64)
    assert found.certificate.optimal
    known = steps(found)
    assert min(step for step in known.values() if step is not None) == pytest.approx(
        found.prediction.step_time_s, rel=1e-12
    )
    assert num_groups(found, found.layout) == 1
    lines = explain(found).lines()
    assert any("8 of 16 devices are not used" in line for line in lines)
    assert any("over several groups nothing is faster" in line for line in lines)


def test_with_enough_work_two_sites_beat_one() -> None:
    found = planned(TWO_SITES, 4096)
    assert num_groups(found, found.layout) == 2
    for step_s in steps(found).values():
        assert step_s is None or found.prediction.step_time_s <= step_s


def test_a_precision_that_some_devices_lack_leaves_them_out() -> None:
    found = planned(UNEQUAL, 512, "bf16")
    assert found.layout.world == 8
    known = steps(found)
    assert known["only dgx-1v-32gb"] is None
    assert known["all devices as v100-sxm2-32gb"] is None
    lines = explain(found).lines()
    assert any("bf16, which v100-sxm2-32gb lacks" in line for line in lines)


def test_a_plan_is_priced_again_alike_and_obeys_the_rules() -> None:
    found = planned(UNEQUAL, 512)
    engine = HeterogeneousEngine(asked("gpt2-medium", UNEQUAL, 512))
    baselines = [one.candidate for one in found.baselines if one.candidate is not None]
    listed = [Candidate(layout=found.layout, prediction=found.prediction), *found.alternatives]
    for one in listed:
        again = engine.predict(one.layout)
        assert again.step_time_s == pytest.approx(one.prediction.step_time_s, rel=1e-9)
        assert again.memory == one.prediction.memory
        assert one.layout.violations(found.model, found.cluster, found.training) == []
    assert len(baselines) == 3
    assert Plan.model_validate_json(found.model_dump_json()) == found


def test_time_by_rank_adds_up_to_the_step() -> None:
    found = planned(UNEQUAL, 512)
    shares = explain(found, resolve_cluster(UNEQUAL)).stages
    assert len(shares) == found.layout.num_pipeline_ranks
    for share in shares:
        assert share.breakdown is not None
        assert share.breakdown.total_s == pytest.approx(found.prediction.step_time_s)


def test_why_not_another_layout_is_answered() -> None:
    found = planned(UNEQUAL, 512)
    answer = why_not(found, "tp=8", resolve_cluster(UNEQUAL))
    assert answer.verdict == "slower"
    assert answer.candidate is not None
    assert answer.candidate.prediction.step_time_s > found.prediction.step_time_s


def test_memory_can_be_capped() -> None:
    made = asked("gpt2-medium", UNEQUAL, 512)
    engine = engine_for(made)
    free = engine.search(Constraints(time_limit_s=10)).ranking[0]
    most = int(max(free.prediction.peak_memory_bytes) * 0.8)
    bounds = parse_bounds(f"peak_memory<={most}B")
    found = engine.search(Constraints(bounds=bounds, time_limit_s=10)).ranking[0]
    assert max(found.prediction.peak_memory_bytes) <= most
    assert found.prediction.step_time_s >= free.prediction.step_time_s


def test_when_nothing_fits_it_says_so_of_each_group() -> None:
    groups = (nodes(FAST, usable_bytes=10**8), nodes(SLOW, usable_bytes=10**8))
    engine = HeterogeneousEngine(problem(*groups))
    found = engine.search(Constraints())
    assert found.ranking == ()
    assert not engine.breaks_rules(Constraints())
    reasons = engine.reasons(Constraints())
    assert any(line.startswith("only dgx-a100-80gb: ") for line in reasons)
    assert any("over several groups" in line for line in reasons)
    leanest = engine.leanest(Constraints())
    assert leanest is not None
    assert leanest.prediction.memory_verdict != "fits"
    assert first_fitting(problem(*groups), Constraints()) is None


def test_what_fits_on_no_group_alone_may_fit_on_both() -> None:
    made = asked("gpt2-xl", "a100-sxm4-40gb:1x1+v100-sxm2-32gb:1x1,between=100Gbit/s", 8)
    plain = Constraints(fixed={"recompute": "none", "micro_batch": 1})
    cap = parse_bounds("peak_memory<=27e9B")
    alone = [
        HeterogeneousEngine(made)._search_alone(index, replace(plain, bounds=cap)).ranking
        for index in range(2)
    ]
    assert alone == [(), ()] or any(alone)
    found = HeterogeneousEngine(made).search(replace(plain, bounds=cap))
    assert bool(found.ranking) or not any(alone)


def test_progress_is_never_above_the_answer() -> None:
    seen: list[Progress] = []
    made = asked("gpt2-medium", UNEQUAL, 512)
    best = engine_for(made).search(Constraints(), seen.append).ranking[0]
    assert seen
    for at in seen:
        assert at.bound_s <= best.prediction.step_time_s * (1 + 1e-9)


def test_sets_with_unequal_shares_train_the_whole_batch() -> None:
    engine = HeterogeneousEngine(asked("gpt2-medium", UNEQUAL, 96))
    found = engine.search(Constraints(fixed={"pp": 1}))
    layout = next(one.layout for one in found.ranking if one.layout.further_replicas)
    counts = [part.dp * part.micro_batch * part.micro_batches for part in replica_sets(layout)]
    assert sum(counts) == 96
    assert counts[0] > counts[1]
