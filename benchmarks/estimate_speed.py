"""CPU time of one estimate of a 405B layout, once model, cluster and cost model are loaded.

Llama-3.1-405B on 16,384 H100 (tp 8, pp 16, dp 128, sequences of 8,192, global batch 2,048), with 1
and with 8 virtual stages per rank. *Repeated*: one layout asked again and again, as a service
would. *Distinct*: layouts that differ in ZeRO, recomputation, loss chunks and stage boundaries,
each priced for the first time, as a search does. What building a `Layout` costs is stated apart.

    python -m benchmarks.estimate_speed
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from shardwright.cost_models.pricing import stack_model
from shardwright.cost_models.stacks.step import StackModel
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.specs import Layout, Recompute, SoftwareSpec, TrainingSpec
from shardwright.specs.sources import resolve_model

NUM_LAYOUTS = 300
MODEL = resolve_model("llama-3.1-405b")
TRAINING = TrainingSpec(global_batch=2048, seq_len=8192)
GRID: dict[str, Any] = {"tp": 8, "pp": 16, "dp": 128, "sequence_parallel": True}
SCHEDULES: dict[str, dict[str, Any]] = {
    "1f1b": {"schedule": "1f1b"},
    "vpp 8": {"schedule": "interleaved-1f1b", "vpp": 8},
}


def main() -> None:
    """Print a table of medians."""
    model = stack_model(
        MODEL, TRAINING, resolve_cluster("dgx-h100:2048"), SoftwareSpec(framework="generic")
    )
    rows = [
        f"| {MODEL.name}, CPU ms | repeated | distinct | building the layout |",
        "|---|--:|--:|--:|",
    ]
    for name, choices in SCHEDULES.items():
        wanted = list(itertools.islice(variants(choices), NUM_LAYOUTS))
        building = median_ms(lambda more: Layout.of(MODEL, TRAINING, **GRID, **more), wanted)
        layouts = [Layout.of(MODEL, TRAINING, **GRID, **more) for more in wanted]
        assert len(set(layouts)) == NUM_LAYOUTS
        price(model, layouts[0])
        repeated = median_ms(lambda one: price(model, one), [layouts[0]] * NUM_LAYOUTS)
        distinct = median_ms(lambda one: price(model, one), layouts[1:])
        rows.append(f"| {name} | {repeated:.2f} | {distinct:.2f} | {building:.2f} |")
    print("\n".join(rows))  # noqa: T201


def price(model: StackModel, layout: Layout) -> float:
    """One estimate: step time with its band and breakdown, and memory of every rank."""
    return model.predict(layout).step_time_s


def variants(choices: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Choices that a search would compare, in an order that is drawn alike every time."""
    policies = [
        Recompute(),
        Recompute(policy="selective"),
        Recompute(policy="selective", modules=("norm", "mlp_act")),
        Recompute(policy="full"),
        *(Recompute(policy="full", num_layers=count) for count in (1, 2)),
    ]
    draw = random.Random(0)
    while True:
        yield choices | {
            "zero": draw.choice((0, 1, 2, 3)),
            "recompute": draw.choice(policies),
            "loss_chunks": draw.choice((1, 4)),
            "boundaries": boundaries(choices.get("vpp", 1) * GRID["pp"], draw),
        }


def boundaries(num_stages: int, draw: random.Random) -> tuple[int, ...]:
    """Nearly even stages: a few layers less in some, a few more in others."""
    num_layers = MODEL.decoder.num_layers
    sizes = [len(range(n, num_layers, num_stages)) for n in range(num_stages)]
    for _ in range(4):
        giver, taker = draw.sample([n for n in range(num_stages) if sizes[n]], 2)
        sizes[giver] -= 1
        sizes[taker] += 1
    return tuple(itertools.accumulate(sizes))[:-1]


def median_ms(work: Callable[[Any], object], items: Iterable[Any]) -> float:
    """Median CPU milliseconds of ``work`` over the items."""
    seconds = []
    for item in items:
        start = time.process_time()
        work(item)
        seconds.append(time.process_time() - start)
    return 1e3 * statistics.median(seconds)


if __name__ == "__main__":
    main()
