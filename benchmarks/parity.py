"""Every layout against one process, in float64: losses, gradients and weights.

    python -m benchmarks.parity                 all cases; a table on stdout
    python -m benchmarks.parity gpt2/tp2 ...    some of them

The one process is plain PyTorch around the logits of the whole model: the global batch at once,
torch's cross-entropy, ``backward``, clipping by hand and `torch.optim.AdamW`; nothing of the
runtime's loss, flat units, schedules, reductions or optimizer. Errors are max |a - b| / max |b| per
tensor, the largest over parameters and ranks; every element that any rank holds is compared.
Losses, gradient norms and weights are those of 3 steps, gradients those of the first step, before
clipping.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.parity_cases import MODELS, SEQ_LEN, TRAINING, VOCAB_SIZE, Case, all_cases
from benchmarks.parity_faults import FAULTS
from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.runtime.models import RankModule, build_rank
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.parallel.loss import IGNORE_INDEX
from shardwright.runtime.parallel.shards import shard_of
from shardwright.runtime.step import TrainStep
from shardwright.specs import Layout, ModelSpec, TrainingSpec
from tests.distributed import run_on_ranks

NUM_STEPS = 3
GRADIENT_TOLERANCE = 1e-10
"""Also for losses and gradient norms."""
WEIGHT_TOLERANCE = 1e-9
LEARNING_RATES = (1e-2, 5e-3, 2e-3)

MicroBatch = tuple[Tensor, Tensor]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Errors:
    """The largest relative error of each kind."""

    loss: float
    grad_norm: float
    gradient: float
    gradient_of: str
    """The parameter with that error."""
    weight: float
    weight_of: str

    @property
    def passed(self) -> bool:
        first = max(self.loss, self.grad_norm, self.gradient)
        return first <= GRADIENT_TOLERANCE and self.weight <= WEIGHT_TOLERANCE


@dataclass(frozen=True, slots=True)
class Reference:
    """What one process computes; arrays, which are pickled by value (tensors take a file each)."""

    losses: list[float]
    grad_norms: list[float]
    gradients: dict[str, FloatArray]
    weights: dict[str, FloatArray]

    def gradient(self, name: str) -> Tensor:
        return torch.from_numpy(self.gradients[name])

    def weight(self, name: str) -> Tensor:
        return torch.from_numpy(self.weights[name])


def batch(step: int) -> MicroBatch:
    """Tokens and labels of the global batch, [24, 13]; later samples have more labels ignored.

    The first sample has all its labels, the last none: dp ranks and micro-batches have unequal
    counts of valid tokens, and some have none.
    """
    generator = torch.Generator().manual_seed(step)
    shape = (TRAINING.global_batch, SEQ_LEN)
    tokens, labels = (torch.randint(VOCAB_SIZE, shape, generator=generator) for _ in range(2))
    share_ignored = torch.linspace(0, 1, TRAINING.global_batch)[:, None]
    ignored = torch.rand(shape, generator=generator) < share_ignored
    return tokens, labels.masked_fill(ignored, IGNORE_INDEX)


def micro_batches(step: int, layout: Layout, dp_rank: int) -> list[MicroBatch]:
    """Those of one dp rank: micro-batch m of rank d is slice m dp + d of the global batch."""
    tokens, labels = (tensor.split(layout.micro_batch) for tensor in batch(step))
    numbers = range(dp_rank, len(tokens), layout.dp)
    return [(tokens[number], labels[number]) for number in numbers]


def build(
    model: ModelSpec, layout: Layout, groups: ParallelGroups, training: TrainingSpec = TRAINING
) -> RankModule:
    """This rank's stages, their parameters moved off their initial values.

    Biases and norm weights start as zeros and ones, which would hide that one was not read.
    """
    rank = build_rank(model, layout, training, groups)
    randomise(rank)
    return rank


def randomise(module: nn.Module) -> None:
    """Add noise to every parameter, keyed by its name: the same on any layout."""
    for parameter in module.parameters():
        shard = shard_of(parameter)
        generator = torch.Generator().manual_seed(zlib.crc32(shard.name.encode()))
        noise = torch.randn(shard.global_shape, generator=generator, dtype=torch.float64)
        parameter.data += shard.take(noise) / 8


@lru_cache
def reference(model_id: str) -> Reference:
    """One process: the whole model and the whole batch at once."""
    model = MODELS[model_id]
    stage = build(model, Layout.of(model, TRAINING, micro_batch=24), ParallelGroups.alone()).stages[
        0
    ]
    named = {shard_of(parameter).name: parameter for parameter in stage.parameters()}
    optimizer = _plain_adamw(named)
    losses, grad_norms = [], []
    gradients: dict[str, FloatArray] = {}
    for step, learning_rate in enumerate(LEARNING_RATES):
        tokens, labels = batch(step)
        loss = cross_entropy(
            stage(tokens).flatten(0, 1), labels.flatten(), label_smoothing=TRAINING.label_smoothing
        )
        optimizer.zero_grad()
        loss.backward()
        found = {name: _gradient(parameter) for name, parameter in named.items()}
        gradients = gradients or {name: g.numpy().copy() for name, g in found.items()}
        norm = torch.stack([gradient.square().sum() for gradient in found.values()]).sum().sqrt()
        _update(optimizer, found, norm, learning_rate)
        losses.append(loss.item())
        grad_norms.append(norm.item())
    weights = {name: parameter.detach().numpy() for name, parameter in named.items()}
    return Reference(losses, grad_norms, gradients, weights)


def _plain_adamw(named: dict[str, nn.Parameter]) -> torch.optim.AdamW:
    spec = TRAINING.optimizer
    matrices = [parameter for parameter in named.values() if parameter.dim() == 2]
    vectors = [parameter for parameter in named.values() if parameter.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": spec.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, betas=(spec.beta1, spec.beta2), eps=spec.epsilon, foreach=False, fused=False
    )


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _update(
    optimizer: torch.optim.AdamW, gradients: dict[str, Tensor], norm: Tensor, learning_rate: float
) -> None:
    clip_norm = TRAINING.optimizer.clip_norm
    assert clip_norm is not None
    assert norm > clip_norm, "clipping would not be tested"
    for gradient in gradients.values():
        gradient *= clip_norm / norm
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()


def relative_error(found: Tensor, expected: Tensor, scale: Tensor) -> float:
    """max |a - b| / max |scale|; infinite where that is not a number."""
    error = ((found - expected).abs().max() / scale.abs().max()).item()
    return error if math.isfinite(error) else math.inf


Worst = tuple[float, str]
"""A relative error, and what has it."""


class ShardedRun:
    """One rank's part of a case, measured against the reference."""

    def __init__(self, case: Case, expected: Reference) -> None:
        layout = case.layout
        groups = ParallelGroups.create(layout)
        rank = build(case.model, layout, groups)
        self.expected = expected
        self.train = TrainStep(rank, layout, TRAINING, groups, schedule_of(layout))
        self.batches = partial(micro_batches, layout=layout, dp_rank=groups.coordinates.dp)

    def gradient_error(self) -> Worst:
        """The worst of all reduced gradients that this rank holds; weights stay as they are."""
        self.train.accumulate(self.batches(0))
        worst = (0.0, "none")
        for unit in self.train.units:
            for part in unit.held_parts():
                whole = self.expected.gradient(part.shard.name)
                own = part.shard.take(whole).flatten()[part.start : part.stop]
                error = relative_error(unit.gradients[part.place], own, whole)
                worst = max(worst, (error, part.shard.name))
        return worst

    def weight_error(self) -> Worst:
        """The worst of all weights as the layers read them."""
        worst = (0.0, "none")
        for unit in self.train.units:
            unit.gather()
            for slot in unit.slots:
                whole = self.expected.weight(slot.shard.name)
                error = relative_error(slot.parameter.detach(), slot.shard.take(whole), whole)
                worst = max(worst, (error, slot.shard.name))
            unit.release()
        return worst

    @property
    def num_owned(self) -> int:
        """Elements of the model that this rank accounts for; over all ranks, every one once."""
        units = self.train.units
        parts = (part for unit in units for part in unit.held_parts(owned_only=True))
        return sum(part.stop - part.start for part in parts)

    def step_errors(self) -> tuple[float, float]:
        """Of the losses and of the gradient norms of all steps."""
        results = [
            self.train.run(self.batches(step), learning_rate)
            for step, learning_rate in enumerate(LEARNING_RATES)
        ]
        losses, norms = ([r.loss for r in results], [r.grad_norm for r in results])
        pairs = ((losses, self.expected.losses), (norms, self.expected.grad_norms))
        found = [[torch.tensor(values, dtype=torch.float64) for values in pair] for pair in pairs]
        loss, norm = (relative_error(a / b, torch.ones_like(b), torch.ones(1)) for a, b in found)
        return loss, norm


def measure(case: Case, expected: Reference, fault: str | None = None) -> tuple[Errors, int]:
    """On one rank: its errors, and how many elements of the model it accounts for."""
    with FAULTS[fault]() if fault else nullcontext():
        run = ShardedRun(case, expected)
        gradient = run.gradient_error()
        loss, norm = run.step_errors()
        return Errors(loss, norm, *gradient, *run.weight_error()), run.num_owned


def errors_of(
    cases: Sequence[Case], *, faults: Sequence[str] | None = None, timeout_s: float = 60.0
) -> list[Errors]:
    """The errors of each case, the worst of its ranks; one launch per number of ranks.

    Args:
        faults: one of `FAULTS` for each case, to show that it is seen.
        timeout_s: of one launch.

    Raises:
        AssertionError: the ranks of a layout do not hold every element of the model once.
    """
    found: dict[int, Errors] = {}
    for world in sorted({case.layout.world for case in cases}):
        numbers = [number for number, case in enumerate(cases) if case.layout.world == world]
        calls = [
            partial(
                measure,
                cases[number],
                reference(cases[number].model_id),
                faults[number] if faults else None,
            )
            for number in numbers
        ]
        ranks = run_on_ranks(world, calls, timeout_s=timeout_s)
        for number, results in zip(numbers, zip(*ranks, strict=True), strict=True):
            held = sum(num_owned for _, num_owned in results)
            case = cases[number]
            assert faults or held == case.model.num_parameters, (case.id, held)
            found[number] = worst_of([errors for errors, _ in results])
    return [found[number] for number in range(len(cases))]


def worst_of(ranks: Sequence[Errors]) -> Errors:
    """Over the ranks of one case."""
    gradient = max((errors.gradient, errors.gradient_of) for errors in ranks)
    weight = max((errors.weight, errors.weight_of) for errors in ranks)
    return Errors(
        max(errors.loss for errors in ranks),
        max(errors.grad_norm for errors in ranks),
        *gradient,
        *weight,
    )


def table(cases: Sequence[Case], found: Sequence[Errors]) -> Iterator[str]:
    """Markdown, one row per case."""
    yield "| case | ranks | loss | gradient norm | gradient | of | weight | of | |"
    yield "|---|--:|--:|--:|--:|---|--:|---|---|"
    for case, e in zip(cases, found, strict=True):
        yield (
            f"| {case.id} | {case.layout.world} | {e.loss:.1e} | {e.grad_norm:.1e} |"
            f" {e.gradient:.1e} | {e.gradient_of} | {e.weight:.1e} | {e.weight_of} |"
            f" {'ok' if e.passed else 'FAILED'} |"
        )


def main(names: Sequence[str]) -> int:
    """Measure the named cases, or all; exit code 1 where one fails."""
    known = all_cases()
    cases = [known[name] for name in names or known]
    found = errors_of(cases, timeout_s=600.0)
    sys.stdout.writelines(f"{line}\n" for line in table(cases, found))
    failed = sum(not errors.passed for errors in found)
    sys.stdout.write(f"\n{len(found)} cases, {failed} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
