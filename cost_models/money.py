"""What a run to a token budget takes: days with failures, GPU-hours, money and energy.

    steps    = ceil(tokens / tokens of a step)
    compute  = steps x step time                                what the steps alone take
    time     = compute / goodput                                with checkpoints and failures
    hours    = devices x time                                   every device is held all the time
    cost     = sum over groups of devices x time x price
    energy   = sum over groups of devices x time x (device + host share) x PUE

Failures follow J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
dumps", Future Generation Computer Systems 22 (2006): a job on n devices fails at random with a mean
time between failures M = (that of one device) / n; work between checkpoints is tau, saving takes
delta (training waits), and after a failure R passes until training goes on from the last
checkpoint. The expected time of T_s of work is then exactly

    T = M exp(R / M) (exp((tau + delta) / M) - 1) T_s / tau

and goodput is T_s / T. Nothing in here is fitted: prices, powers and failure rates come from the
catalogue with their sources (`hardware_profiles.economics`) or from the user.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from shardwright.hardware_profiles.economics import power_of, price_of, reliability_facts
from shardwright.specs import ClusterSpec, NodeGroup

SECONDS_PER_HOUR = 3600.0
_LARGEST_EXPONENT = 700.0
"""exp() of more overflows a double; a job that fails so often makes no headway at all."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run is reckoned with besides its pace; None takes the catalogue's."""

    usd_per_gpu_hour: float | None = None
    device_mtbf_s: float | None = None
    """Mean time between failures that stop the job, of one device with its share of node and
    network; infinite: nothing fails."""
    checkpoint_s: float | None = None
    """How long training waits for one checkpoint."""
    restart_s: float | None = None
    """From a failure until training goes on: noticed, replaced, reloaded."""
    interval_s: float | None = None
    """Work between two checkpoints; None takes Daly's optimum."""
    pue: float = 1.0
    """Energy of the whole site over that of its computers."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """How much of the time goes into steps that count."""

    fraction: float
    """0 where failures come faster than a checkpoint can be reached."""
    mtbf_s: float
    """Of the whole job."""
    interval_s: float
    """Work between two checkpoints."""
    checkpoint_fraction: float
    """Share of the time that goes into saving, of intervals that succeed."""

    @property
    def lost_fraction(self) -> float:
        """Share of the time that goes into work done again and into restarts."""
        return max(0.0, 1.0 - self.fraction - self.checkpoint_fraction)


@dataclass(frozen=True, slots=True)
class RunCost:
    """A run to its token budget; infinite where failures let it never end."""

    num_steps: int
    compute_s: float
    """Steps alone."""
    time_s: float
    """With checkpoints and failures."""
    goodput: Goodput
    num_failures: float
    """Expected."""
    gpu_hours: float
    cost_usd: float | None
    """None where the price of some device is not known."""
    cost_usd_range: tuple[float, float] | None
    """At the cheapest and at the dearest offer known."""
    energy_joules: float | None
    """At most: every device at its limit, hosts as far as stated. None where no limit is known."""

    @property
    def days(self) -> float:
        return self.time_s / (24 * SECONDS_PER_HOUR)


def young_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Young's optimum sqrt(2 delta M): "A first order approximation to the optimum checkpoint
    interval", Communications of the ACM 17 (1974)."""
    return math.sqrt(2 * checkpoint_s * mtbf_s)


def daly_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Daly's optimum of the work between checkpoints (2006, equation 37).

    sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + (delta / 2M) / 9) - delta where delta < 2M, else M.
    Infinite where nothing fails.
    """
    if math.isinf(mtbf_s):
        return math.inf
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = checkpoint_s / (2 * mtbf_s)
    series = 1 + math.sqrt(ratio) / 3 + ratio / 9
    return young_interval_s(checkpoint_s, mtbf_s) * series - checkpoint_s


def goodput(num_devices: int, terms: Terms, compute_s: float = math.inf) -> Goodput:
    """The share of time that counts for a job of ``compute_s`` seconds on ``num_devices``.

    A job that is shorter than an interval saves once, at its end. Saving that takes no time is done
    so often that nothing is done again: only restarts are left.
    """
    facts = reliability_facts()
    device_mtbf_s = _or(terms.device_mtbf_s, facts.device_mtbf_s)
    checkpoint_s = _or(terms.checkpoint_s, facts.checkpoint_s)
    restart_s = _or(terms.restart_s, facts.restart_s)
    mtbf_s = device_mtbf_s / num_devices
    best_s = daly_interval_s(checkpoint_s, mtbf_s)
    interval_s = min(_or(terms.interval_s, best_s), compute_s)
    if math.isinf(mtbf_s):
        share = interval_s / (interval_s + checkpoint_s) if math.isfinite(interval_s) else 1.0
        return Goodput(share, mtbf_s, interval_s, 1.0 - share)
    share = _share_of_work(interval_s, checkpoint_s, restart_s, mtbf_s)
    saving = share * checkpoint_s / interval_s if interval_s > 0 else 0.0
    return Goodput(share, mtbf_s, interval_s, saving)


def _share_of_work(
    interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float
) -> float:
    """T_s / T of Daly's model (2006, equation 20), with its limit where the interval vanishes."""
    exponent = (interval_s + checkpoint_s) / mtbf_s
    if max(exponent, restart_s / mtbf_s) > _LARGEST_EXPONENT:
        return 0.0
    restarting = math.exp(restart_s / mtbf_s)
    if interval_s == 0:  # only without any time to save
        return 1.0 / restarting
    return interval_s / (mtbf_s * restarting * math.expm1(exponent))


def run_cost(
    cluster: ClusterSpec,
    *,
    step_time_s: float,
    tokens_per_step: int,
    token_budget: int,
    terms: Terms | None = None,
) -> RunCost:
    """Time, GPU-hours, money and energy of training on ``token_budget`` tokens."""
    return reckon(
        rates_of(cluster),
        step_time_s=step_time_s,
        tokens_per_step=tokens_per_step,
        token_budget=token_budget,
        terms=terms,
    )


@dataclass(frozen=True, slots=True)
class Rates:
    """What a cluster costs and draws as the catalogue has it: all that `reckon` needs of it."""

    num_devices: int
    usd_per_s: tuple[float, float, float] | None
    """At the cheapest, the usual and the dearest price; None where one is not known."""
    power_watts: float | None
    """At most; None where the limit of some device is not known."""


def rates_of(cluster: ClusterSpec) -> Rates:
    """The rates of a cluster before anything is overridden."""
    return Rates(cluster.num_devices, usd_per_s_range(cluster), power_watts(cluster))


def reckon(
    rates: Rates,
    *,
    step_time_s: float,
    tokens_per_step: int,
    token_budget: int,
    terms: Terms | None = None,
) -> RunCost:
    """As `run_cost`, of rates that were looked up before."""
    terms = terms or Terms()
    num_steps = -(-token_budget // tokens_per_step)
    compute_s = num_steps * step_time_s
    share = goodput(rates.num_devices, terms, compute_s)
    time_s = compute_s / share.fraction if share.fraction > 0 else math.inf
    stated = terms.usd_per_gpu_hour
    usd = rates.usd_per_s
    if stated is not None:
        usd = (rates.num_devices * stated / SECONDS_PER_HOUR,) * 3
    watts = rates.power_watts
    return RunCost(
        num_steps=num_steps,
        compute_s=compute_s,
        time_s=time_s,
        goodput=share,
        num_failures=time_s / share.mtbf_s,
        gpu_hours=rates.num_devices * time_s / SECONDS_PER_HOUR,
        cost_usd=None if usd is None else usd[1] * time_s,
        cost_usd_range=None if usd is None else (usd[0] * time_s, usd[2] * time_s),
        energy_joules=None if watts is None else watts * terms.pue * time_s,
    )


def usd_per_s(cluster: ClusterSpec, terms: Terms | None = None) -> float | None:
    """What the whole cluster costs a second; None where some device's price is not known."""
    rates = usd_per_s_range(cluster, terms)
    return None if rates is None else rates[1]


def usd_per_s_range(
    cluster: ClusterSpec, terms: Terms | None = None
) -> tuple[float, float, float] | None:
    """The cheapest, the usual and the dearest price of a second of the whole cluster."""
    low = usual = high = 0.0
    for group in cluster.groups:
        stated = terms.usd_per_gpu_hour if terms else None
        if stated is not None:
            prices = (stated, stated, stated)
        else:
            price = price_of(group)
            if price is None:
                return None
            prices = (
                price.low_usd_per_gpu_hour, price.usd_per_gpu_hour, price.high_usd_per_gpu_hour,
            )  # fmt: skip
        low += group.num_devices * prices[0] / SECONDS_PER_HOUR
        usual += group.num_devices * prices[1] / SECONDS_PER_HOUR
        high += group.num_devices * prices[2] / SECONDS_PER_HOUR
    return low, usual, high


def power_watts(cluster: ClusterSpec, terms: Terms | None = None) -> float | None:
    """What the cluster draws at most, hosts as far as stated, times the PUE; None where the limit
    of some device is not known."""
    total_watts = 0.0
    for group in cluster.groups:
        power = power_of(group)
        if power is None:
            return None
        total_watts += group.num_devices * (power.device_watts + (power.host_watts or 0.0))
    return total_watts * (terms.pue if terms else 1.0)


def sources_in_words(cluster: ClusterSpec, terms: Terms | None = None) -> dict[str, str]:
    """What the figures rest on: ``price``, ``power``, ``failures``, ``checkpoint``, ``restart``."""
    terms = terms or Terms()
    failures, checkpoint, restart = failures_in_words(terms)
    return {
        "price": _by_group(cluster, lambda group: _price_in_words(group, terms)),
        "power": _by_group(cluster, _power_in_words),
        "failures": failures,
        "checkpoint": checkpoint,
        "restart": restart,
    }


def failures_in_words(terms: Terms) -> tuple[str, str, str]:
    """How often devices fail, what saving and what restarting takes, each with its source."""
    facts = reliability_facts()
    mtbf_s = _or(terms.device_mtbf_s, facts.device_mtbf_s)
    checkpoint_s = _or(terms.checkpoint_s, facts.checkpoint_s)
    restart_s = _or(terms.restart_s, facts.restart_s)
    often = "nothing fails" if math.isinf(mtbf_s) else f"one per {mtbf_s / 3600:,.0f} device hours"
    return (
        _stated(often, terms.device_mtbf_s, facts.device_mtbf_source),
        _stated(f"{checkpoint_s:g} s", terms.checkpoint_s, facts.checkpoint_source),
        _stated(f"{restart_s:g} s", terms.restart_s, facts.restart_source),
    )


def _by_group(cluster: ClusterSpec, words: Callable[[NodeGroup], str]) -> str:
    """The words of each group, its name before them where there are several."""
    if len(cluster.groups) == 1:
        return words(cluster.groups[0])
    return "; ".join(f"{group.name}: {words(group)}" for group in cluster.groups)


def _price_in_words(group: NodeGroup, terms: Terms) -> str:
    if terms.usd_per_gpu_hour is not None:
        return f"{terms.usd_per_gpu_hour:g} USD per GPU hour (as stated)"
    price = price_of(group)
    if price is None:
        return "no price known"
    return f"{price.usd_per_gpu_hour:.4g} USD per GPU hour ({price.source})"


def _power_in_words(group: NodeGroup) -> str:
    power = power_of(group)
    return "not known" if power is None else power.source


def _stated(words: str, given: float | None, source: str) -> str:
    return f"{words} ({'as stated' if given is not None else source})"


def _or(given: float | None, fact: float) -> float:
    return fact if given is None else given
