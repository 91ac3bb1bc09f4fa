"""Why not another layout: the rule, the bytes or the seconds, for every kind of failure."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import pytest

from shardwright.cost_models.pricing import step_model
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.api import estimate, plan
from shardwright.planner.explain.shares import LIMITS
from shardwright.planner.explain.why_not import WhyNot, why_not
from shardwright.planner.layouts import layout_in_words
from shardwright.specs import InputError, Plan, TrainingSpec
from shardwright.specs.sources import resolve_model
from tests.planner.conftest import measured, tiny_model
from tests.planner.stacks.small import moe_model


class Job(NamedTuple):
    made: Plan
    profile: HardwareProfile


def job(model: Any, cluster: str, *, batch: int, seq_len: int, **options: Any) -> Job:
    host_bytes = options.pop("host_bytes", None)
    profile = resolve_cluster(cluster)
    if host_bytes is not None:
        (group,) = profile.devices.groups
        group = group.model_copy(update={"host_memory_bytes": host_bytes})
        devices = profile.devices.model_copy(update={"groups": (group,)})
        profile = profile.model_copy(update={"devices": devices})
    spec = resolve_model(model) if isinstance(model, str) else model
    training = TrainingSpec(
        global_batch=batch, seq_len=seq_len, trainable=options.pop("trainable", "full")
    )
    answer = plan(model=spec, profile=profile, training=training, **options)
    assert answer.plan is not None
    return Job(answer.plan, profile)


@functools.cache
def jobs(name: str) -> Job:
    if name == "dense":
        return job("llama-3-8b", "dgx-h100:2", batch=64, seq_len=4096)
    if name == "fixed":
        return job("llama-3-8b", "dgx-h100:2", batch=64, seq_len=4096, fix="tp=8")
    if name == "odd sequence":
        return job("gpt2", "dgx-h100:2", batch=64, seq_len=1000)
    if name == "experts":
        return job(moe_model(), "h100-sxm5-80gb:4x1", batch=8, seq_len=1024)
    if name == "slow network":
        return job(
            "gpt2",
            "h100-sxm5-80gb:4x2,inter=1GB/s",
            batch=8,
            seq_len=1024,
            fix="tp=1,cp=1",
            time_limit_s=2.0,
        )
    if name == "adapters":
        return job("llama-2-70b", "dgx-h100:1", batch=8, seq_len=4096, trainable="lora:16",
                   time_limit_s=2.0)  # fmt: skip
    assert name == "small hosts"
    return job("llama-3-8b", "dgx-h100:1", batch=64, seq_len=4096, host_bytes=2**30)


RULES = {
    "more devices than there are": ("dense", "tp=8,pp=4", "16 devices"),
    "a degree that divides no cluster": ("dense", "tp=3", "3 x 1 x 1 x 5 = 15"),
    "tp beyond the heads": ("dense", "tp=64", "exceeds the 32 attention heads"),
    "a batch that dp does not divide": ("dense", "dp=16,micro_batch=8", "global_batch = 64"),
    "a micro-batch that divides nothing": ("dense", "micro_batch=3,tp=8", "micro_batch in"),
    "another number of micro-batches": ("dense", "dp=8,tp=2,micro_batch=1,m=7", "global_batch"),
    "a V with three arms": ("dense", "pp=4,schedule=zb-v,vpp=3", "two stages per rank"),
    "1F1B that interleaves": ("dense", "pp=4,vpp=2,schedule=1f1b", "one stage per rank"),
    "sequence parallelism alone": ("dense", "tp=1,sp=on", "needs tp > 1"),
    "experts of a dense model": ("dense", "ep=2", "no experts"),
    "a sequence that cp does not divide": ("odd sequence", "cp=16", "1000 tokens"),
    "fewer heads than cp": ("odd sequence", "tp=4,cp=4,cp_kind=all_to_all", "attention heads"),
    "more ranks than experts": ("experts", "ep=8", "does not divide the 4 experts"),
    "ranks that do not share experts": ("experts", "ep=3", "does not divide the 4 experts"),
    "experts cut beyond the grid": ("experts", "etp=3", "etp x ep = 3"),
    "shards of no copy": ("dense", "zero=1,tp=8,pp=1,zero_shard_degree=4", "zero_shard_degree"),
    "a module that the model has not": ("dense", "recompute=selective:moe", "no moe"),
    "more layers recomputed than held": ("dense", "pp=1,recompute=full:40", "holds 32"),
    "more chunks of the loss than tokens": ("dense", "loss_chunks=1000000", "loss_chunks <= "),
}  # fmt: skip


@pytest.mark.parametrize("case", RULES)
def test_a_broken_rule_is_named_with_its_numbers_and_the_nearest_runs(case: str) -> None:
    name, asked, said = RULES[case]
    answer, made = ask(name, asked)
    assert answer.verdict == "breaks_rules", answer.reasons
    assert any(said in reason for reason in answer.reasons), answer.reasons
    assert answer.candidate is None
    assert answer.nearest is not None
    assert answer.given_up
    layout = answer.nearest.layout
    assert layout.violations(made.made.model, made.made.cluster, made.made.training) == []
    check_price(answer, made)


MEMORY = {
    "weights": ("adapters", "tp=1,pp=1,cp=1,zero=0,recompute=full,micro_batch=1", "weights"),
    "optimizer state": (
        "dense",
        "tp=1,pp=1,cp=1,zero=0,recompute=full,micro_batch=1,offload=none",
        "optimizer_state",
    ),
    "activations": (
        "dense",
        "tp=1,cp=1,pp=8,zero=0,micro_batch=8,recompute=none,offload=none",
        "activations",
    ),
    "logits": (
        "dense",
        "tp=1,cp=1,pp=8,zero=3,micro_batch=32,recompute=full,loss_chunks=1",
        "transient",
    ),
    "sharded twice only": (
        "dense",
        "zero=1,zero_shard_degree=1,tp=1,pp=1,cp=1,offload=none",
        "optimizer_state",
    ),
}


@pytest.mark.parametrize("case", MEMORY)
def test_too_many_bytes_are_counted_by_rank_and_part(case: str) -> None:
    name, asked, part = MEMORY[case]
    answer, made = ask(name, asked)
    assert answer.verdict == "does_not_fit", answer
    assert answer.too_big is not None
    prediction = answer.too_big.prediction
    again = repriced(made, layout_in_words(answer.too_big.layout))
    assert again.prediction == prediction
    peak, capacity = max(prediction.peak_memory_bytes), prediction.memory_capacity_bytes
    assert answer.excess_bytes == peak - capacity > 0
    (reason,) = answer.reasons
    rank = prediction.peak_memory_bytes.index(peak)
    assert f"pipeline rank {rank} needs {peak:,} bytes" in reason
    assert f"{peak - capacity:,} more than the {capacity:,} bytes" in reason
    parts = prediction.memory[rank].model_dump()
    assert max(parts, key=lambda name: parts[name]) == part, parts
    check_price(answer, made)
    assert answer.nearest is not None
    assert answer.nearest.prediction.memory_verdict == "fits"


def test_hosts_that_are_too_small_are_named() -> None:
    answer, made = ask("small hosts", "offload=optimizer,zero=1,tp=2,cp=1,pp=1")
    assert answer.verdict == "does_not_fit"
    (reason,) = answer.reasons
    assert answer.too_big is not None
    model = step_model(made.made.model, made.made.training, made.profile, made.made.software)
    host_bytes = getattr(model, "host_bytes")(answer.too_big.layout)  # noqa: B009
    needed = max(host_bytes) * 8
    assert f"{needed:,} bytes" in reason
    assert f"{needed - 2**30:,} more than" in reason
    assert answer.nearest is not None
    assert not answer.nearest.layout.offload


SLOWER = {
    "tp across nodes, beyond the kv heads": ("dense", "tp=16,pp=1", "tp traffic"),
    "a long pipeline": ("dense", "pp=16,micro_batch=4,schedule=1f1b", "bubble"),
    "recomputing everything": ("dense", "tp=1,pp=4,recompute=full,schedule=1f1b", "recompute"),
    "a ring around everything": ("dense", "cp=16,cp_kind=ring", "cp traffic"),
    "weights gathered over a slow network": (
        "slow network",
        "zero=3,dp=8,zero_shard_degree=8",
        "dp traffic",
    ),
    "heads that tp does not divide": ("odd sequence", "tp=8,pp=1,cp=1", "tp traffic"),
    "experts over everything": ("experts", "ep=4,tp=1,dp=4", None),
    "a schedule that is not searched": ("dense", "pp=4,schedule=gpipe,tp=1", "recompute"),
}


@pytest.mark.parametrize("case", SLOWER)
def test_a_slower_layout_loses_where_it_is_said_to(case: str) -> None:
    name, asked, term = SLOWER[case]
    answer, made = ask(name, asked)
    assert answer.verdict in ("slower", "tied", "chosen"), answer
    check_price(answer, made)
    assert answer.candidate is not None
    assert answer.candidate == answer.nearest
    ratio = answer.candidate.prediction.step_time_s / made.made.prediction.step_time_s
    within = made.profile.tie_ratio
    assert answer.verdict == ("slower" if ratio > within else "tied" if ratio > 1 else "chosen")
    if term is None:
        return
    assert answer.terms[0][0] == term, answer.terms
    for what, more_s in answer.terms:
        chosen, other = (
            sum(one.prediction.breakdown.model_dump()[field] for field in LIMITS[what])
            for one in (made.made, answer.candidate)
        )
        assert more_s == pytest.approx(other - chosen)
    shown = re.findall(r"(\d+\.\d+)% slower", answer.reasons[0])
    assert shown == [f"{(ratio - 1) * 100:.2f}"]


def test_what_means_nothing_is_priced_as_it_is_named() -> None:
    answer, _ = ask("dense", "pp=1,tp=8,zero=1,recompute=full,schedule=1f1b")
    assert answer.verdict == "slower"
    assert "nothing is left of the space" in answer.reasons[-1]
    assert answer.candidate is not None
    assert answer.candidate.layout.schedule is None


def test_more_stages_than_layers_are_priced_with_empty_ones() -> None:
    answer, _ = ask("dense", "pp=16,vpp=4,schedule=interleaved-1f1b")
    assert answer.verdict == "slower"
    assert "nothing of the kind is searched" in answer.reasons[-1]
    assert answer.candidate is not None
    assert sum(stage.num_layers == 0 for stage in answer.candidate.layout.stages) == 32


def test_a_tie_says_so() -> None:
    made = jobs("dense")
    answer = why_not(made.made, layout_in_words(made.made.ties[0].layout), made.profile)
    assert answer.verdict == "tied"
    assert f"{made.profile.tie_ratio - 1:.1%}" in answer.reasons[1]
    assert answer.candidate == made.made.ties[0]


def test_the_plan_s_own_layout_is_recognised_whole_and_in_part() -> None:
    made = jobs("dense")
    for asked in (layout_in_words(made.made.layout), {"tp": made.made.layout.tp}):
        assert why_not(made.made, asked, made.profile).verdict == "chosen"


def test_a_better_one_says_what_the_plan_was_held_to() -> None:
    answer, made = ask("fixed", "tp=1")
    assert answer.verdict == "better"
    assert "--fix tp=8" in answer.reasons[1]
    check_price(answer, made)


def test_a_nearest_that_is_faster_than_the_plan_says_why() -> None:
    made = jobs("dense")
    layout = made.made.layout
    slow = repriced(made, "tp=8,pp=2,micro_batch=1,recompute=full,schedule=1f1b")
    assert slow.prediction.step_time_s > made.made.prediction.step_time_s
    answer = why_not(slow, {"tp": layout.tp, "micro_batch": 3}, made.profile)
    assert answer.verdict == "breaks_rules"
    assert answer.nearest is not None
    assert answer.nearest.prediction.step_time_s < slow.prediction.step_time_s
    assert answer.reasons[-1].startswith("the nearest is faster than the plan: the plan is an")


def test_what_our_runtime_does_not_do_is_refused_by_name() -> None:
    profile = measured(resolve_cluster("dgx-h100", gpus=4))
    training = TrainingSpec(global_batch=8, seq_len=64)
    answer = plan(model=tiny_model(6, hidden=64), profile=profile, training=training)
    assert answer.plan is not None
    found = why_not(answer.plan, "offload=optimizer", profile)
    assert found.verdict == "breaks_rules"
    assert found.reasons
    assert found.nearest is not None
    assert why_not(answer.plan, "tp=4,pp=1", profile).candidate is not None


@pytest.mark.parametrize("asked", ["", "tpp=2", "tp=none"])
def test_nonsense_is_refused(asked: str) -> None:
    with pytest.raises(InputError):
        why_not(jobs("dense").made, asked, jobs("dense").profile)


def ask(name: str, asked: str) -> tuple[WhyNot, Job]:
    made = jobs(name)
    return why_not(made.made, asked, made.profile), made


def repriced(made: Job, layout: str) -> Plan:
    answer = estimate(
        model=made.made.model, profile=made.profile, training=made.made.training,
        software=made.made.software, layout=layout,
    )  # fmt: skip
    assert answer.plan is not None, answer.reasons
    return answer.plan


def check_price(answer: WhyNot, made: Job) -> None:
    """The nearest costs what an estimate of it says."""
    assert answer.nearest is not None
    assert answer.nearest_in_words is not None
    again = repriced(made, answer.nearest_in_words)
    assert again.layout == answer.nearest.layout
    assert again.prediction == answer.nearest.prediction
