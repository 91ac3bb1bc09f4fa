"""Every sharding computes what one process computes, to the last digits of float64."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from shardwright.runtime.models import StageModule, build_stage
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.parallel.shards import shard_of, sum_replicated_gradients
from shardwright.specs import (
    InputError,
    Layout,
    ModelSpec,
    NormBlock,
    Precision,
    Recompute,
    TrainingSpec,
)
from tests.distributed import run_on_ranks
from tests.runtime.tiny_models import MODELS, tensor_parallel_groups, tiny_llama

SEQ_LEN = 11  # uneven over 2, 3 and 4 ranks


def training_of(**changes: Any) -> TrainingSpec:
    fields = {"global_batch": 2, "seq_len": SEQ_LEN, "precision": Precision.FP64, "seed": 3}
    return TrainingSpec(**fields | {"label_smoothing": 0.1} | changes)


def build(model: ModelSpec, groups: ParallelGroups, stage: int = 0, **choices: Any) -> StageModule:
    layout = Layout.of(model, training_of(), micro_batch=2, **choices)
    return build_stage(model, layout, training_of(), stage, groups)


def batch(batch_size: int = 2) -> tuple[Tensor, Tensor]:
    """Tokens and labels, with unequal numbers of labels that do not count."""
    torch.manual_seed(1)
    tokens = torch.randint(0, 37, (batch_size, SEQ_LEN))
    labels = torch.randint(0, 37, (batch_size, SEQ_LEN))
    labels[0, 2:9] = -100
    labels[1, 4] = -100
    return tokens, labels


def error(ours: Tensor, reference: Tensor) -> float:
    return float((ours - reference).abs().max() / reference.abs().max().clamp_min(1e-30))


def worst_error(name: str, tp: int, *, sp: bool, recompute: bool) -> float:
    """Of loss and each parameter's gradient, against the whole model in this process."""
    model, (tokens, labels) = MODELS[name], batch()
    reference = build(model, ParallelGroups.alone())
    expected = reference(tokens, labels)
    expected.backward()
    whole = {shard_of(p).name: p for p in reference.parameters()}
    stage = build(
        model, tensor_parallel_groups(tp), tp=tp, sequence_parallel=sp,
        recompute=Recompute(policy="full" if recompute else "none"),
    )  # fmt: skip
    loss = stage(tokens, labels)
    loss.backward()
    gradients = [(shard_of(p), p.grad) for p in stage.parameters() if p.grad is not None]
    assert len(gradients) == len(whole)
    sum_replicated_gradients(gradients, stage.tensor_parallel.group)
    errors = [error(loss.detach(), expected.detach())]
    for shard, gradient in gradients:
        full = whole[shard.name].grad
        assert full is not None
        # The bias of a key moves all scores of a query alike: its gradient is zero but for noise.
        scale = 1.0 if shard.name.endswith("qkv.bias") else None
        mine = shard.take(full)
        errors.append(
            error(gradient, mine) if scale is None else float((gradient - mine).abs().max())
        )
    return max(errors)


def all_errors(tp: int) -> dict[str, float]:
    found = {}
    for number, (name, sp) in enumerate(itertools.product(MODELS, (False, True))):
        recompute = number % 3 == 0
        key = f"{name} sp={sp} recompute={recompute}"
        found[key] = worst_error(name, tp, sp=sp, recompute=recompute)
    return found


@pytest.mark.multiprocess
@pytest.mark.parametrize("tp", [2, 3, 4])
def test_tensor_parallel_equals_one_process(tp: int) -> None:
    for rank in run_on_ranks(tp, [functools.partial(all_errors, tp)], timeout_s=180.0):
        assert {key: value for key, value in rank[0].items() if not value < 1e-10} == {}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_recompute_equals_keeping(name: str) -> None:
    assert worst_error(name, 1, sp=False, recompute=True) == 0.0


@pytest.mark.parametrize("name", sorted(MODELS))
def test_stages_in_a_row_equal_one(name: str) -> None:
    model, (tokens, labels) = MODELS[name], batch()
    expected = build(model, ParallelGroups.alone())(tokens, labels)
    x = tokens
    for stage in range(3):
        x = build(model, tensor_parallel_groups(1, pp=3, stage=stage), stage, pp=3)(x, labels)
    assert torch.equal(x, expected)


def test_gradients_equal_finite_differences() -> None:
    model, (tokens, labels) = MODELS["llama-tied-biased"], batch()
    stage = build(model, ParallelGroups.alone())
    stage(tokens, labels).backward()
    for parameter in stage.parameters():
        assert parameter.grad is not None
        at = int(parameter.grad.abs().argmax())
        element, step = parameter.data.view(-1)[at : at + 1], 1e-6
        values = []
        for shift in (step, -2 * step):
            element += shift
            values.append(float(stage(tokens, labels).detach()))
        element += step
        slope = (values[0] - values[1]) / (2 * step)
        gradient = float(parameter.grad.view(-1)[at])
        assert slope == pytest.approx(gradient, rel=1e-5, abs=1e-7), shard_of(parameter).name


def test_loss_equals_torchs_cross_entropy() -> None:
    tokens, labels = batch()
    stage = build(MODELS["gpt2"], ParallelGroups.alone())
    expected = torch.nn.functional.cross_entropy(
        stage(tokens).flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=0.1
    )
    assert error(stage(tokens, labels).detach(), expected.detach()) < 1e-14


def test_no_valid_label_gives_no_loss_and_no_gradient() -> None:
    tokens, labels = batch()
    stage = build(MODELS["llama"], ParallelGroups.alone())
    loss = stage(tokens, labels.fill_(-100))
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is not None and not p.grad.any() for p in stage.parameters())


def test_a_second_backward_is_refused_rather_than_wrong() -> None:
    stage = build(MODELS["llama"], ParallelGroups.alone())
    loss = stage(*batch())
    loss.backward(retain_graph=True)
    with pytest.raises((RuntimeError, AttributeError)):
        loss.backward()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_lower_precision_is_near_double(precision: str) -> None:
    model, (tokens, labels) = MODELS["llama"], batch()
    expected = build(model, ParallelGroups.alone())(tokens, labels)
    training = training_of(precision=Precision(precision))
    layout = Layout.of(model, training, micro_batch=2)
    loss = build_stage(model, layout, training, 0, ParallelGroups.alone())(tokens, labels)
    assert loss.dtype == torch.float32
    assert error(loss.detach(), expected.detach()) < {"fp32": 1e-6, "bf16": 1e-2}[precision]


def test_unsupported_models_are_refused() -> None:
    model = tiny_llama(num_layers=1)
    layer = next(model.decoder.layers())
    norm = NormBlock(type="rms_norm", hidden_size=20, bias=False, epsilon=1e-5)
    branch = layer.branches[0].model_copy(update={"post_norm": norm})
    changed = layer.model_copy(update={"branches": (branch, layer.branches[1])})
    tower = model.decoder.model_copy(
        update={"blocks": tuple(changed if b.kind == "layer" else b for b in model.decoder.blocks)}
    )
    with pytest.raises(InputError, match="without a norm before, or with one after"):
        build(model.model_copy(update={"towers": (tower,)}), ParallelGroups.alone())
