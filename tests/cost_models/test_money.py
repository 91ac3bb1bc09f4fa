"""What a run takes: against Daly's closed form, a simulation of failures, and sums by hand."""

from __future__ import annotations

import math
import random

import pytest

from shardwright.cost_models.money import (
    Terms,
    daly_interval_s,
    goodput,
    power_watts,
    run_cost,
    sources_in_words,
    usd_per_s,
    young_interval_s,
)
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.specs import ClusterSpec

LLAMA3 = Terms(device_mtbf_s=50677 * 3600, checkpoint_s=30, restart_s=600)
NEVER = Terms(device_mtbf_s=math.inf, checkpoint_s=0)


def h100(gpus: int = 64) -> ClusterSpec:
    return resolve_cluster("dgx-h100", gpus=gpus).devices


def simulated_share(mtbf_s: float, interval_s: float, save_s: float, restart_s: float) -> float:
    """Goodput of a job that is played through, failure by failure, for 20,000 intervals."""
    chance = random.Random(5)
    clock = done = 0.0
    fails_at = chance.expovariate(1 / mtbf_s)
    while done < 20_000:
        if clock + interval_s + save_s <= fails_at:
            clock, done = clock + interval_s + save_s, done + 1
            continue
        while True:  # a restart may be interrupted as well
            clock = fails_at
            fails_at = clock + chance.expovariate(1 / mtbf_s)
            if clock + restart_s <= fails_at:
                clock += restart_s
                break
    return done * interval_s / clock


@pytest.mark.parametrize(("mtbf_s", "save_s", "restart_s"), [(11140, 30, 600), (3000, 120, 300)])
def test_goodput_is_that_of_a_job_played_through(
    mtbf_s: float, save_s: float, restart_s: float
) -> None:
    found = goodput(1, Terms(device_mtbf_s=mtbf_s, checkpoint_s=save_s, restart_s=restart_s))
    played = simulated_share(mtbf_s, found.interval_s, save_s, restart_s)
    assert found.fraction == pytest.approx(played, rel=0.01)


@pytest.mark.parametrize("ratio", [1e-4, 1e-3, 1e-2, 0.1, 0.5])
def test_no_other_interval_is_noticeably_better_than_dalys(ratio: float) -> None:
    mtbf_s = 10_000.0
    terms = Terms(device_mtbf_s=mtbf_s, checkpoint_s=ratio * mtbf_s, restart_s=100)
    best = goodput(1, terms)
    for factor in (0.3, 0.5, 0.8, 0.9, 1.1, 1.25, 2, 4):
        other = Terms(
            device_mtbf_s=mtbf_s,
            checkpoint_s=terms.checkpoint_s,
            restart_s=100,
            interval_s=best.interval_s * factor,
        )
        assert goodput(1, other).fraction <= best.fraction * (1 + 1e-3)


def test_the_optimum_of_a_large_job_is_the_published_example() -> None:
    found = goodput(16384, LLAMA3)
    assert found.mtbf_s == pytest.approx(3.093 * 3600, rel=1e-3)
    assert young_interval_s(30, found.mtbf_s) == pytest.approx(13.6 * 60, rel=0.01)
    assert found.interval_s == pytest.approx(13.2 * 60, rel=0.02)
    first_order = 1 / (1 + 30 / found.interval_s + (found.interval_s / 2 + 600) / found.mtbf_s)
    assert found.fraction == pytest.approx(first_order, rel=0.01)  # the usual approximation


def test_saving_longer_than_failures_are_apart_is_done_once_in_between() -> None:
    assert daly_interval_s(500, 100) == 100


def test_more_devices_fail_more_often() -> None:
    shares = [goodput(count, LLAMA3).fraction for count in (64, 1024, 16384, 131072)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.99


def test_a_job_without_headway_never_ends() -> None:
    terms = Terms(device_mtbf_s=1, checkpoint_s=10, restart_s=10_000)
    cost = run_cost(h100(), step_time_s=1, tokens_per_step=10, token_budget=1000, terms=terms)
    assert cost.goodput.fraction == 0
    assert math.isinf(cost.time_s)


def test_without_failures_only_steps_count() -> None:
    cost = run_cost(h100(), step_time_s=2, tokens_per_step=1000, token_budget=10_001, terms=NEVER)
    assert cost.num_steps == 11
    assert cost.time_s == cost.compute_s == 22
    assert cost.gpu_hours == pytest.approx(64 * 22 / 3600)
    assert cost.num_failures == 0


def test_parts_of_the_time_are_the_whole() -> None:
    share = goodput(4096, LLAMA3)
    assert share.fraction + share.checkpoint_fraction + share.lost_fraction == pytest.approx(1)
    assert share.checkpoint_fraction > 0
    assert share.lost_fraction > 0


def test_a_short_job_saves_once() -> None:
    assert goodput(8, LLAMA3, compute_s=100).interval_s == 100


def test_money_and_energy_by_hand() -> None:
    terms = Terms(usd_per_gpu_hour=2.5, device_mtbf_s=math.inf, checkpoint_s=0, pue=1.2)
    cost = run_cost(h100(), step_time_s=3600, tokens_per_step=1, token_budget=10, terms=terms)
    assert cost.cost_usd == pytest.approx(64 * 10 * 2.5)
    assert cost.cost_usd_range == pytest.approx((1600, 1600))
    assert cost.energy_joules == pytest.approx(64 * 36000 * 10200 / 8 * 1.2)


def test_groups_of_nodes_have_prices_and_powers_of_their_own() -> None:
    old, new = (resolve_cluster(slug).devices for slug in ("aws-p4de.24xlarge", "aws-p5.48xlarge"))
    both = ClusterSpec(
        name="both",
        groups=(*old.groups, *new.groups),
        between_groups=new.groups[0].inter_node,
    )
    assert usd_per_s(both) == pytest.approx(8 * (3.4312 + 6.88) / 3600)
    assert power_watts(both) == pytest.approx(8 * (400 + 700))


def test_what_is_not_known_is_said() -> None:
    cluster = resolve_cluster("mtt-s5000-8gpu").devices
    cost = run_cost(cluster, step_time_s=1, tokens_per_step=1, token_budget=1)
    assert (cost.cost_usd, cost.cost_usd_range, cost.energy_joules) == (None, None, None)
    words = sources_in_words(cluster)
    assert words["price"] == "no price known"
    assert words["power"] == "not known"
    assert usd_per_s(cluster, Terms(usd_per_gpu_hour=1)) == pytest.approx(8 / 3600)


def test_sources_tell_facts_from_what_was_stated() -> None:
    words = sources_in_words(h100())
    assert "Llama 3" in words["failures"]
    assert "BLOOM" in words["checkpoint"]
    assert "dated offers" in words["price"]
    stated = sources_in_words(h100(), Terms(usd_per_gpu_hour=3, device_mtbf_s=3600, checkpoint_s=5))
    assert stated["price"] == "3 USD per GPU hour (as stated)"
    assert stated["failures"] == "one per 1 device hours (as stated)"
    assert stated["checkpoint"] == "5 s (as stated)"
