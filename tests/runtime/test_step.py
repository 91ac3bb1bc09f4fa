"""One training step on one process against plain torch on the same model."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.runtime.models import RankModule, StageModule, build_stage
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.parallel.shards import shard_of
from shardwright.runtime.pipeline import MicroBatch
from shardwright.runtime.step import TrainStep
from shardwright.specs import Layout, OptimizerSpec, Precision, TrainingSpec
from tests.runtime.tiny_models import MODELS

SEQ_LEN, MICRO_BATCHES = 8, 3
LEARNING_RATES = (1e-2, 3e-2, 5e-3)
CLIP_NORM = 0.5


def training(clip_norm: float | None = CLIP_NORM) -> TrainingSpec:
    return TrainingSpec(
        global_batch=2 * MICRO_BATCHES,
        seq_len=SEQ_LEN,
        precision=Precision.FP64,
        optimizer=OptimizerSpec(learning_rate=1e-2, weight_decay=0.3, clip_norm=clip_norm),
    )


def layout_of(name: str) -> Layout:
    return Layout.of(MODELS[name], training(), micro_batch=2)


def make_stage(name: str) -> StageModule:
    return build_stage(MODELS[name], layout_of(name), training(), 0, ParallelGroups.alone())


def make_step(name: str, clip_norm: float | None = CLIP_NORM) -> tuple[StageModule, TrainStep]:
    stage, layout = make_stage(name), layout_of(name)
    groups, schedule = ParallelGroups.alone(), schedule_of(layout)
    return stage, TrainStep(RankModule({0: stage}), layout, training(clip_norm), groups, schedule)


def batch(seed: int) -> list[MicroBatch]:
    """Micro-batches of two sequences, with unequal numbers of labels that count."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index in range(MICRO_BATCHES):
        tokens = torch.randint(37, (2, SEQ_LEN), generator=generator)
        labels = torch.randint(37, (2, SEQ_LEN), generator=generator)
        labels[0, : 2 * index] = -100
        made.append((tokens, labels))
    return made


def weights(stage: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in stage.parameters()]


def plain_optimizer(stage: nn.Module) -> torch.optim.AdamW:
    how = training().optimizer
    groups = [
        {
            "params": [p for p in stage.parameters() if shard_of(p).weight_decay == decays],
            "weight_decay": how.weight_decay if decays else 0.0,
        }
        for decays in (True, False)
    ]
    betas = (how.beta1, how.beta2)
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=how.epsilon, foreach=False)


def plain_step(
    stage: nn.Module, optimizer: torch.optim.AdamW, whole: list[MicroBatch], learning_rate: float
) -> tuple[float, float]:
    """Loss and gradient norm of all sequences at once, by torch's own cross-entropy and AdamW."""
    tokens, labels = (torch.cat(parts) for parts in zip(*whole, strict=True))
    optimizer.zero_grad()
    loss = functional.cross_entropy(stage(tokens).flatten(0, 1), labels.flatten())
    loss.backward()
    gradients = [p.grad for p in stage.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    torch._foreach_mul_(gradients, min(1.0, CLIP_NORM / norm.item()))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    return loss.item(), norm.item()


@pytest.mark.parametrize("name", ["gpt2", "llama-tied-biased"])
def test_three_steps_are_those_of_plain_torch(name: str) -> None:
    stage, step = make_step(name)
    reference = make_stage(name)
    optimizer = plain_optimizer(reference)
    for index, learning_rate in enumerate(LEARNING_RATES):
        result = step.run(batch(index), learning_rate)
        loss, norm = plain_step(reference, optimizer, batch(index), learning_rate)
        assert result.loss == pytest.approx(loss, rel=1e-12)
        assert result.grad_norm == pytest.approx(norm, rel=1e-10)
        assert result.grad_norm > CLIP_NORM  # so that clipping is part of what is compared
        assert result.valid_tokens == 2 * SEQ_LEN * MICRO_BATCHES - (2 + 4)
        for own, plain in zip(weights(stage), weights(reference), strict=True):
            torch.testing.assert_close(own, plain, rtol=1e-9, atol=1e-11)
    assert step.optimizer.num_steps == len(LEARNING_RATES)


def test_without_a_limit_nothing_is_clipped() -> None:
    """After one step the first moment is the gradient that AdamW was given, times 1 - beta1."""
    for limit in (CLIP_NORM, None):
        _, step = make_step("llama", limit)
        before_clipping = step.run(batch(0), 1e-2).grad_norm
        moments = torch.cat([state.exp_avg for state in step.optimizer.states])
        given = moments.norm().item() / (1 - training().optimizer.beta1)
        assert given == pytest.approx(limit or before_clipping, rel=1e-9)


class TestNotFinite:
    def test_no_weight_and_no_state_changes(self) -> None:
        stage, step = make_step("llama")
        step.run(batch(0), 1e-2)
        parameter = next(stage.parameters())
        with torch.no_grad():
            parameter[batch(1)[0][0][0, 0]] = math.inf  # the row of a token that comes
        before = weights(stage)
        moments = [state.exp_avg.clone() for state in step.optimizer.states]
        result = step.run(batch(1), 1e-2)
        assert not result.is_finite
        assert step.optimizer.num_steps == 1
        for now, then in zip(weights(stage), before, strict=True):
            assert torch.equal(now, then)
        for state, moment in zip(step.optimizer.states, moments, strict=True):
            assert torch.equal(state.exp_avg, moment)

    def test_the_next_step_is_not_spoilt_by_its_gradients(self) -> None:
        (stage, step), (_, fresh) = make_step("llama"), make_step("llama")
        parameter = next(stage.parameters())
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.fill_(math.nan)
        assert not step.run(batch(0), 1e-2).is_finite
        with torch.no_grad():
            parameter.copy_(kept)
        assert step.run(batch(1), 1e-2) == fresh.run(batch(1), 1e-2)


def test_accumulating_leaves_the_weights_and_can_be_repeated() -> None:
    stage, step = make_step("gpt2")
    before = weights(stage)
    first, second = step.accumulate(batch(0)), step.accumulate(batch(0))
    assert first == second
    for now, then in zip(weights(stage), before, strict=True):
        assert torch.equal(now, then)


def test_a_batch_without_any_label_has_no_loss_and_no_gradient() -> None:
    _, step = make_step("llama")
    empty = [(tokens, torch.full_like(labels, -100)) for tokens, labels in batch(0)]
    result = step.accumulate(empty)
    assert (result.loss, result.grad_norm, result.valid_tokens) == (0.0, 0.0, 0)


@pytest.mark.parametrize("count", [MICRO_BATCHES - 1, MICRO_BATCHES + 1])
def test_another_number_of_micro_batches_is_a_mistake(count: int) -> None:
    stage, step = make_step("llama")
    before = weights(stage)
    with pytest.raises(AssertionError):
        step.run((batch(0) + batch(1))[:count], 1e-2)
    assert all(torch.equal(now, then) for now, then in zip(weights(stage), before, strict=True))
