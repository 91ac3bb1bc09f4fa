"""One unit of work priced: sums of its operations, and communication shown or hidden."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.cost_models.stacks.layers import layer_work
from shardwright.cost_models.stacks.links import Links, axes
from shardwright.cost_models.stacks.operations import (
    Axis,
    CollectiveKind,
    Message,
    Operation,
    Product,
    Traffic,
)
from shardwright.cost_models.stacks.parameters import device_rates
from shardwright.cost_models.stacks.price import Seconds, WorkPricer
from tests.cost_models.stacks.cases import sharding
from tests.cost_models.stacks.jobs import MODEL, PROFILE, SOFTWARE, TRAINING, layout, parameters

VALUES = parameters()
RATES = device_rates(PROFILE, TRAINING, SOFTWARE, VALUES)
LINKS = Links(PROFILE, VALUES)
GROUPS = axes(layout(tp=4, cp=2, dp=4, ep=8))
PRODUCT, MOVED = Product(4096, 4096, 4096), Traffic(1e8, 3)


def priced(*operations: Operation, hidden: float = 0.5) -> Seconds:
    some = layer_work(next(MODEL.decoder.layers()), sharding(), frozenset())
    one = replace(some, forward=operations)
    return WorkPricer(RATES, LINKS, GROUPS, hidden).price(one).forward


def test_computation_is_the_sum_of_its_operations() -> None:
    found = priced(PRODUCT, MOVED)
    assert found.compute_s == pytest.approx(RATES.product(PRODUCT) + RATES.traffic(MOVED))
    assert found.total_s == found.compute_s


def test_every_launch_is_counted() -> None:
    assert priced(PRODUCT, MOVED, Message("all_reduce", 1e6, "tp")).kernels == 1 + 3 + 1


@pytest.mark.parametrize(
    ("axis", "field"), [("tp", "tp_s"), ("cp", "cp_s"), ("ep", "ep_s"), ("etp", "ep_s")]
)
def test_each_axis_has_its_share(axis: Axis, field: str) -> None:
    groups = GROUPS | {"etp": (2, 1)}
    kind: CollectiveKind = "all_to_all" if axis == "ep" else "all_gather"
    message = Message(kind, 1e7, axis)
    work = layer_work(next(MODEL.decoder.layers()), sharding(), frozenset())
    one = replace(work, forward=(message,))
    found = WorkPricer(RATES, LINKS, groups, 0.5).price(one).forward
    assert getattr(found, field) == LINKS.seconds(kind, 1e7, *groups[axis])
    assert found.total_s == getattr(found, field)


@pytest.mark.parametrize("hidden", [0.0, 0.5, 1.0])
def test_what_overlaps_hides_behind_products_as_far_as_these_last(hidden: float) -> None:
    small, large = (Message("all_gather", size, "tp", overlaps=True) for size in (1e6, 1e9))
    window = RATES.product(PRODUCT)
    for message in (small, large):
        alone = LINKS.seconds("all_gather", message.num_bytes, *GROUPS["tp"])
        found = priced(PRODUCT, message, hidden=hidden)
        assert found.tp_s == pytest.approx(alone - hidden * min(alone, window))


def test_a_ring_hides_behind_attention_alone() -> None:
    message = Message("send_recv", 1e6, "cp", overlaps=True)
    assert priced(PRODUCT, message).cp_s == LINKS.seconds("send_recv", 1e6, *GROUPS["cp"])


def test_gathering_around_split_products_may_hide_but_sums_do_not() -> None:
    some = layer_work(next(MODEL.decoder.layers()), sharding(), frozenset())
    kinds: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter", "all_reduce")
    for kind in kinds:
        one = replace(some, forward=(PRODUCT, Message(kind, 1e6, "tp")))
        alone = LINKS.seconds(kind, 1e6, *GROUPS["tp"])
        window = RATES.product(PRODUCT)
        pricer = WorkPricer(RATES, LINKS, GROUPS, 0.5, overlap_tensor_parallel=True)
        hidden = 0.0 if kind == "all_reduce" else 0.5 * min(alone, window)
        assert pricer.price(one).forward.tp_s == pytest.approx(alone - hidden)


def test_what_is_on_the_critical_path_shows_in_full() -> None:
    message = Message("all_reduce", 1e6, "tp")
    found = priced(PRODUCT, message, hidden=1.0)
    assert found.tp_s == LINKS.seconds("all_reduce", 1e6, *GROUPS["tp"])


def test_passes_are_priced_apart() -> None:
    one = layer_work(next(MODEL.decoder.layers()), sharding(seq_len=2048), None)
    found = WorkPricer(RATES, LINKS, GROUPS, 0.5).price(one)
    assert found.again == found.forward
    forward_s = found.forward.compute_s
    assert forward_s < found.backward_input.compute_s < 1.6 * forward_s  # more of attention
    assert 0.5 * forward_s < found.backward_weight.compute_s < forward_s  # products alone
    plain = layer_work(next(MODEL.decoder.layers()), sharding(seq_len=2048), frozenset())
    assert WorkPricer(RATES, LINKS, GROUPS, 0.5).price(plain).again == Seconds()


def test_seconds_add_up() -> None:
    found = Seconds(1.0, 2.0, 3.0, 4.0, 5.0).plus(Seconds(0.1, 0.2, 0.3, 0.4, 0.5), 10)
    assert found == Seconds(2.0, 4.0, 6.0, 8.0, 10.0)
    assert found.total_s == 20.0
