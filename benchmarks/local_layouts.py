"""Predicted against measured steps on this machine, for layouts drawn from all valid ones.

    python -m benchmarks.local_layouts --ranks 2 --layouts 10
    python -m benchmarks.local_layouts --ranks 4 --layouts 14

The profile is written before the first layout is timed and is never refitted. Layouts are drawn
with seed 0 from every valid layout of the problem, none removed, and the planner's pick is added.
All are built side by side in one launch and timed in turn, round after round, so that the drift of
a shared machine hits them alike. A step's time is the maximum over ranks.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from shardwright.cost_models.step import StepModel
from shardwright.hardware_profiles.measure import profile
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.rank_environment import pin_to_core, rank_environment
from shardwright.planner.pricing import StepPricer
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.search import search
from shardwright.planner.space import Space
from shardwright.specs import Layout, SoftwareSpec, TrainingSpec
from shardwright.specs.sources import resolve_model

MODEL = Path(__file__).parents[1] / "examples" / "demo" / "config.json"
TRAINING = TrainingSpec.model_validate({"global_batch": 16, "seq_len": 256, "precision": "fp32"})
TIMEOUT = timedelta(minutes=5)
NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Measured:
    """One layout on all ranks."""

    step_times_s: list[float]
    """Of every timed step, in the order of the rounds."""
    live_bytes: list[int]
    """Peak of live tensors in one step, by rank."""
    resident_growth_bytes: list[int]
    """Of the resident set from before the layout was built to after its first step, by rank."""


def draw_layouts(problem: Problem, count: int) -> list[Layout]:
    """``count`` different layouts, each equally likely among all valid ones; seed 0."""
    space = Space(problem, Constraints())
    sizes = [space.num_cuts(choices.pp) for choices in space.valid]
    drawn = random.Random(0).sample(range(sum(sizes)), min(count, sum(sizes)))
    layouts = []
    for index in drawn:
        for choices, size in zip(space.valid, sizes, strict=True):
            if index < size:
                cuts = list(combinations(range(problem.num_layers + 1), choices.pp - 1))
                layouts.append(choices.layout(problem, cuts[index]))
                break
            index -= size
    return layouts


def name_of(layout: Layout) -> str:
    """A row's id: the choices that differ, and the layers of each stage."""
    parts = [f"tp{layout.tp}{'sp' if layout.sequence_parallel else ''}", f"pp{layout.pp}",
             f"dp{layout.dp}", f"mb{layout.micro_batch}"]  # fmt: skip
    if layout.zero:
        parts.append(f"zero{layout.zero}")
    if layout.recompute[0].policy == "full":
        parts.append("recompute")
    if layout.pp > 1:
        parts += [str(layout.schedule), "+".join(str(s.num_layers) for s in layout.stages)]
    return "-".join(parts)


def measure(
    layouts: list[Layout],
    num_ranks: int,
    rounds: int,
    steps: int,
    model: Path = MODEL,
    training: TrainingSpec = TRAINING,
) -> list[Measured]:
    """Every layout on ``num_ranks`` real ranks of this machine."""
    os.environ.update(rank_environment("cpu"))
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[list[Measured]] = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(
                target=_rank_main,
                args=(
                    rank,
                    num_ranks,
                    str(Path(folder) / "store"),
                    layouts,
                    rounds,
                    steps,
                    queue,
                    model,
                    training,
                ),
                daemon=True,
            )
            for rank in range(num_ranks)
        ]
        for process in ranks:
            process.start()
        try:
            while queue.empty():
                if any(process.exitcode for process in ranks):
                    raise SystemExit("a rank failed; its traceback is above")
                time.sleep(0.2)
            return queue.get()
        finally:
            for process in ranks:
                process.join(10)
                process.kill()


def _rank_main(
    rank: int,
    num_ranks: int,
    store: str,
    layouts: list[Layout],
    rounds: int,
    steps: int,
    queue: multiprocessing.Queue[list[Measured]],
    model: Path,
    training: TrainingSpec,
) -> None:
    pin_to_core(rank, num_ranks)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks, timeout=TIMEOUT
    )
    jobs = [_Job(layout, model, training) for layout in layouts]
    times: list[list[float]] = [[] for _ in layouts]
    for round_index in range(rounds):
        order = list(range(len(jobs)))
        random.Random(round_index).shuffle(order)
        for index in order:
            times[index] += jobs[index].timed_steps(steps)
    sizes: list[Any] = [None] * num_ranks
    dist.all_gather_object(sizes, [(job.live_bytes, job.resident_growth_bytes) for job in jobs])
    if rank == 0:
        queue.put([
            Measured(times[i], [of[i][0] for of in sizes], [of[i][1] for of in sizes])
            for i in range(len(jobs))
        ])  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()


class _Job:
    """One layout, built and stepped once on this rank; the step measured its memory."""

    def __init__(self, layout: Layout, path: Path, training: TrainingSpec) -> None:
        import torch

        from shardwright.cost_models.pipeline.schedules import schedule_of
        from shardwright.runtime.ledger import Ledger
        from shardwright.runtime.models import build_rank
        from shardwright.runtime.parallel.groups import ParallelGroups
        from shardwright.runtime.step import TrainStep

        model = resolve_model(str(path))
        resident_before = _resident_bytes()
        groups = ParallelGroups.create(layout)
        generator = torch.Generator().manual_seed(groups.coordinates.dp)
        shape = (layout.micro_batches, 2, layout.micro_batch, training.seq_len)
        batches = torch.randint(model.embedding.vocab_size, shape, generator=generator)
        self._micro_batches = [(tokens, labels) for tokens, labels in batches]
        ledger = Ledger()
        with ledger:
            rank = build_rank(model, layout, training, groups)
            self._step = TrainStep(rank, layout, training, groups, schedule_of(layout))
            self._step.run(self._micro_batches, 1e-4)
        ledger.reset_peak()
        with ledger:
            self._step.run(self._micro_batches, 1e-4)
        self.live_bytes = ledger.peak_bytes
        self.resident_growth_bytes = _resident_bytes() - resident_before
        gc.collect()

    def timed_steps(self, count: int) -> list[float]:
        """A warm-up, then the seconds of each timed step, the slowest rank's."""
        import torch
        import torch.distributed as dist

        self._step.run(self._micro_batches, 1e-4)
        times = []
        for _ in range(count):
            dist.barrier()
            start = time.perf_counter()
            self._step.run(self._micro_batches, 1e-4)
            slowest = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            times.append(float(slowest))
        return times


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def median_interval(values: list[float], seed: int) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median."""
    draw = random.Random(seed)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES)
    )
    return medians[int(0.025 * NUM_RESAMPLES)], medians[int(0.975 * NUM_RESAMPLES)]


def rank_correlation(xs: list[float], ys: list[float]) -> float:
    """Spearman's rho of two lists without ties."""

    def places(values: list[float]) -> list[int]:
        order = sorted(range(len(values)), key=values.__getitem__)
        return [order.index(i) for i in range(len(values))]

    count = len(xs)
    squares = sum((a - b) ** 2 for a, b in zip(places(xs), places(ys), strict=True))
    return 1 - 6 * squares / (count * (count**2 - 1))


def ordered_pairs(predicted: list[float], measured: list[float], apart: float) -> tuple[int, int]:
    """(ordered right, all) pairs whose measured times differ by more than ``apart``."""
    right = total = 0
    for i, j in combinations(range(len(measured)), 2):
        if max(measured[i], measured[j]) > (1 + apart) * min(measured[i], measured[j]):
            total += 1
            right += (predicted[i] < predicted[j]) == (measured[i] < measured[j])
    return right, total


def load_or_measure_profile(path: Path, num_ranks: int) -> HardwareProfile:
    """The profile of an earlier call, or a new one."""
    if path.exists():
        return HardwareProfile.from_json(path.read_text(encoding="utf-8"), source=str(path))
    measured = profile(num_ranks=num_ranks)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(measured.to_json(), encoding="utf-8")
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layouts", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="timed steps in each round")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    path = options.profile or Path(f".shardwright/benchmark-profile-{options.ranks}.json")
    hardware = load_or_measure_profile(path, options.ranks)
    problem = Problem(resolve_model(str(MODEL)), TRAINING, hardware, SoftwareSpec())
    pick = search(problem, Constraints(), StepPricer(problem)).ranking[0].candidate.layout
    layouts = draw_layouts(problem, options.layouts)
    layouts += [pick] if pick not in layouts else []
    price = StepModel(problem.model, TRAINING, hardware, problem.software)
    predictions = [price.predict(layout) for layout in layouts]
    measured = measure(layouts, options.ranks, options.rounds, options.steps)
    lines = report(layouts, pick, predictions, measured, hardware)
    sys.stdout.write("\n".join(lines) + "\n")
    if options.out:
        options.out.write_text(json.dumps([
            {"layout": name_of(layout), "predicted": predicted.model_dump(mode="json"),
             "measured": asdict(got)}
            for layout, predicted, got in zip(layouts, predictions, measured, strict=True)
        ], indent=1) + "\n", encoding="utf-8")  # fmt: skip


def report(
    layouts: list[Layout],
    pick: Layout,
    predictions: list[Any],
    measured: list[Measured],
    hardware: HardwareProfile,
) -> list[str]:
    """The table and its summary, as lines of Markdown."""
    lines = [
        f"Profile of {hardware.provenance.created_at}, {hardware.devices.in_words()}.",
        "",
        "| layout | predicted s | measured s | error | live / timeline | resident growth MiB |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    medians = [statistics.median(got.step_times_s) for got in measured]
    errors, live_ratios = [], []
    for layout, predicted, got, median in zip(layouts, predictions, measured, medians, strict=True):
        error = predicted.step_time_s / median - 1
        live = [
            max(got.live_bytes[rank] for rank in ranks) / (parts.total_bytes - parts.fixed)
            for ranks, parts in zip(ranks_by_stage(layout), predicted.memory, strict=True)
        ]
        errors.append(abs(error))
        live_ratios += live
        mark = " (pick)" if layout == pick else ""
        lines.append(
            f"| {name_of(layout)}{mark} | {predicted.step_time_s:.3f} | {median:.3f} |"
            f" {error:+.1%} | {' '.join(f'{ratio:.3f}' for ratio in live)} |"
            f" {' '.join(f'{b / 2**20:.0f}' for b in got.resident_growth_bytes)} |"
        )
    predicted_s = [prediction.step_time_s for prediction in predictions]
    best, picked = medians.index(min(medians)), layouts.index(pick)
    intervals = [median_interval(measured[i].step_times_s, i) for i in (best, picked)]
    tied = intervals[1][0] <= intervals[0][1]
    right, pairs = ordered_pairs(predicted_s, medians, 0.10)
    in_band = sum(
        p.step_time_band_s[0] <= m <= p.step_time_band_s[1]
        for p, m in zip(predictions, medians, strict=True)
    )
    worst_live = max(live_ratios, key=lambda ratio: abs(ratio - 1))
    lines += [
        "",
        f"{len(layouts)} layouts; median error {statistics.median(errors):.1%}, largest"
        f" {max(errors):.1%}; {in_band} inside their 80 % band.",
        f"Pick: {medians[picked]:.3f} s against the best measured {medians[best]:.3f} s"
        f" ({name_of(layouts[best])}): ratio {medians[picked] / medians[best]:.3f},"
        f" 95 % intervals {'overlap' if tied else 'are apart'}.",
        f"Order: Spearman {rank_correlation(predicted_s, medians):.2f}; of {pairs} pairs more than"
        f" 10 % apart {right} are ordered right.",
        f"Live tensor bytes over the memory timeline: worst {worst_live:.3f}.",
    ]
    return lines


def ranks_by_stage(layout: Layout) -> list[list[int]]:
    """Global ranks of each pipeline rank."""
    starts = [layout.world_size.ranks_per_stage * pp for pp in range(layout.pp + 1)]
    return [list(range(start, stop)) for start, stop in pairwise(starts)]


if __name__ == "__main__":
    main()
