"""Stages between two boundaries cost what `StackModel` says of the whole layout."""

from __future__ import annotations

import itertools
import random

import pytest

from shardwright.cost_models.stacks.step import StackModel
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.stacks.choices import Leaf, StackChoices
from shardwright.planner.stacks.prices import StackPrices
from shardwright.planner.stacks.space import StackSpace
from shardwright.planner.stacks.stages import Place, StagePricer, least_count
from tests.planner.stacks.small import draw_choices, draw_problem, pricer_of, stage_policies

SEEDS = [seed for seed in range(30) if draw_problem(seed) is not None]


def parts_of(seed: int) -> tuple[Problem, StackSpace, StackModel, StackPrices]:
    drawn = draw_problem(seed)
    assert drawn is not None
    made, constraints = drawn
    space, pricer = StackSpace(made, Constraints(fixed=constraints.fixed)), pricer_of(made)
    return made, space, pricer, StackPrices(made, space, pricer)


def stages_of(prices: StackPrices, leaf: Leaf) -> StagePricer:
    return StagePricer(prices, leaf.grid, leaf.cut, leaf.state, is_split=leaf.is_split)


def place_of(choices: StackChoices, index: int) -> Place:
    last = choices.grid.pp - 1
    if last == 0:
        return Place(1, 0, 0)
    return Place(1, (index > 0) + (index < last), (index > 0) - (index < last))


@pytest.mark.parametrize("seed", SEEDS)
def test_seconds_are_those_of_the_whole_layout(seed: int) -> None:
    made, space, pricer, prices = parts_of(seed)
    draw = random.Random(seed)
    for _ in range(20):
        choices = draw_choices(space, draw)
        if choices.pipeline.vpp > 1:
            continue
        edges = (0, *choices.starts, made.num_units)
        expected = pricer.stage_times(choices.layout(made, space.others))
        stages = stages_of(prices, choices.leaf)
        for index, (start, stop) in enumerate(itertools.pairwise(edges)):
            chunks = choices.loss_chunks if stop == made.num_units else 1
            option = stages.option(
                place_of(choices, index), start, stop, choices.recompute[index], chunks
            )
            assert option.forward_s == pytest.approx(expected[index].forward_s, rel=1e-9)
            assert option.backward_s == pytest.approx(
                expected[index].backward_input_s + expected[index].backward_weight_s, rel=1e-9
            )


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_are_no_more_than_those_of_the_whole_layout(seed: int) -> None:
    made, space, pricer, prices = parts_of(seed)
    draw = random.Random(seed)
    for _ in range(20):
        choices = draw_choices(space, draw)
        if choices.grid.pp > 1:
            continue
        layout = choices.layout(made, space.others)
        (rank,) = pricer.memory(layout)
        live = stages_of(prices, choices.leaf).live_bytes(
            place_of(choices, 0), 0, made.num_units, choices.recompute[0], choices.loss_chunks
        )
        assert live <= rank.total_bytes
        fits = pricer.verdict([rank]) == "fits"
        assert (live <= prices.most_live_bytes(choices.grid, choices.cut) * (1 + 1e-12)) == fits


@pytest.mark.parametrize("seed", SEEDS)
def test_options_fit_and_recompute_no_layer_more_than_they_must(seed: int) -> None:
    made, space, _, prices = parts_of(seed)
    draw = random.Random(seed)
    for _ in range(20):
        choices = draw_choices(space, draw)
        stages, place = stages_of(prices, choices.leaf), place_of(choices, 0)
        stop = draw.randint(1, made.num_units)
        for option in stages.options(place, 0, stop):
            text, chunks = option.recompute, option.loss_chunks
            assert stages.live_bytes(place, 0, stop, text, chunks) <= stages.room_bytes
            if text.startswith("full:") and text != "full:1":
                fewer = f"full:{int(text[5:]) - 1}"
                assert stages.live_bytes(place, 0, stop, fewer, chunks) > stages.room_bytes


@pytest.mark.parametrize("seed", [*SEEDS, 3965])
def test_no_way_that_fits_is_faster_than_all_options(seed: int) -> None:
    made, space, _, prices = parts_of(seed)
    draw = random.Random(seed)
    for _ in range(20):
        leaf = draw_choices(space, draw).leaf
        stages, place = stages_of(prices, leaf), Place(draw.randint(1, 3), 1, 1)
        start, stop = draw.randint(0, made.num_units - 1), made.num_units
        options = stages.options(place, start, stop)
        layers = made.num_units - 1 - max(start, 1)
        for policy in stage_policies(space, layers):
            for chunks in space.loss_chunks:
                needed = stages.live_bytes(place, start, stop, policy, chunks)
                if needed > stages.room_bytes:
                    continue
                way = stages.option(place, start, stop, policy, chunks)
                assert any(one.total_s <= way.total_s * (1 + 1e-9) for one in options), way
                assert any(one.input_s <= way.input_s * (1 + 1e-9) for one in options) or (
                    not leaf.is_split
                ), way


def test_what_was_refused_is_not_offered_again() -> None:
    made, space, _, prices = parts_of(SEEDS[0])
    choices = draw_choices(space, random.Random(0))
    stages, place = stages_of(prices, choices.leaf), place_of(choices, 0)
    offered = set()
    while found := stages.options(place, 0, 2):
        assert found[0] not in offered
        offered.add(found[0])
        stages.refuse(place, 0, 2, found[0])
    assert offered
    assert made.num_units > 2


@pytest.mark.parametrize("most", [1, 2, 7, 40])
def test_the_least_count_is_found(most: int) -> None:
    draw = random.Random(most)
    for wanted in range(1, most + 1):
        gains = [draw.uniform(0.1, 3.0) for _ in range(most)]
        needed = sum(gains[:wanted])
        found = least_count(lambda n, g=gains, x=needed: x - sum(g[:n]) - 1e-12, most)  # type: ignore[misc]
        assert found == wanted
