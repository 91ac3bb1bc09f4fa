"""Small problems, and a cost model made of invented unit costs and the real pipeline simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from shardwright.cost_models.pipeline.makespan import PipelineCosts, simulate
from shardwright.cost_models.pipeline.program import program_of
from shardwright.hardware_profiles.profile import (
    Curve,
    HardwareProfile,
    Point,
    ProfileProvenance,
)
from shardwright.planner.bounds import Floats, UnitBytes, UnitSeconds
from shardwright.planner.choices import Choices
from shardwright.planner.problem import Problem
from shardwright.specs import (
    AcceleratorSpec,
    ActionKind,
    AttentionBlock,
    Breakdown,
    ClusterSpec,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    Layout,
    LinkTier,
    MemoryParts,
    MlpBlock,
    ModelSpec,
    NodeGroup,
    NormBlock,
    Prediction,
    ResidualBranch,
    Tower,
    TrainingSpec,
)

GIB = 2**30


def tiny_model(num_layers: int = 4, hidden: int = 32, heads: int = 4) -> ModelSpec:
    norm = NormBlock(type="rms_norm", hidden_size=hidden, bias=False, epsilon=1e-5)
    attention = AttentionBlock(
        hidden_size=hidden, num_heads=heads, num_kv_heads=2, head_dim=hidden // heads,
        qkv_bias=False, output_bias=False, rotary=None,
    )  # fmt: skip
    mlp = MlpBlock(hidden_size=hidden, ffn_size=96, activation="silu", gated=True, bias=False)
    branches = tuple(ResidualBranch(body=body, pre_norm=norm) for body in (attention, mlp))
    blocks = (
        EmbeddingBlock(vocab_size=101, hidden_size=hidden),
        LayerBlock(branches=branches, repeat=num_layers),
        norm,
        HeadBlock(vocab_size=101, hidden_size=hidden, tied=False),
    )
    tower = Tower(name="decoder", blocks=blocks)
    return ModelSpec(name="tiny", family="custom", towers=(tower,), max_seq_len=64, source="test")


def tiny_profile(num_devices: int = 4, memory_bytes: int = GIB) -> HardwareProfile:
    link = LinkTier(
        name="bus", bandwidth_bytes_per_s=1e9, latency_s=1e-5, provenance="user", source="test"
    )
    device = AcceleratorSpec(
        name="box", vendor="none", memory_bytes=memory_bytes, usable_memory_bytes=memory_bytes,
        memory_bandwidth_bytes_per_s=1e10, peak_flops_per_s={"fp32": 1e11}, provenance="user",
        source="test",
    )  # fmt: skip
    group = NodeGroup(
        name="node", num_nodes=1, devices_per_node=num_devices, accelerator=device,
        intra_node=link, inter_node=None, scale_up_domain_gpus=num_devices,
    )  # fmt: skip
    made = ProfileProvenance(created_at="2026-01-01T00:00:00Z", host="test", software={})
    return HardwareProfile(provenance=made, devices=ClusterSpec(name="test", groups=(group,)))


def measured(profile: HardwareProfile) -> HardwareProfile:
    """The profile as if something had been measured there, so that our own books price it."""
    points = (Point(1.0, 1e-6, 0.0, 1), Point(1e9, 1e-3, 0.0, 1))
    curve = Curve(quantity="bytes", op="elementwise/nothing", dtype="fp64", points=points)
    return profile.model_copy(update={"curves": (curve,)})


def tiny_problem(
    num_layers: int = 4,
    num_devices: int = 4,
    global_batch: int = 8,
    memory_bytes: int = GIB,
) -> Problem:
    training = TrainingSpec.model_validate(
        {"global_batch": global_batch, "seq_len": 16, "precision": "fp32"}
    )
    return Problem(tiny_model(num_layers), training, tiny_profile(num_devices, memory_bytes))


@dataclass(frozen=True)
class InventedCosts:
    """A `Pricer` whose units cost what a seed says; the pipeline is simulated for real."""

    problem: Problem
    seed: int
    capacity_bytes: int = GIB

    def unit_seconds(self, choices: Choices) -> UnitSeconds:
        draw = self._draw(choices, "seconds")
        units = self.problem.num_units
        forward = draw.uniform(0.5, 1.5, units) * choices.micro_batch / choices.tp**0.7
        backward = draw.uniform(1.0, 3.0, units) * choices.micro_batch / choices.tp**0.7
        if choices.recompute == "full":
            backward = backward + forward
        gather = 0.05 if choices.zero == 3 else 0.0
        cross = draw.uniform(0.0, 0.4, choices.pp)
        at_start, at_end = (np.arange(choices.pp) != end for end in (0, choices.pp - 1))
        sharded = choices.dp if choices.zero else 1
        return UnitSeconds(
            forward_s=forward + gather,
            backward_s=backward + gather,
            receive_forward_s=cross * at_start,
            receive_backward_s=cross * at_end,
            reduction_s=draw.uniform(0.1, 0.3, units) * (choices.dp > 1) / choices.tp,
            tied_sum_s=0.3 if choices.pp > 1 else 0.0,
            optimizer_s=draw.uniform(0.1, 0.2, units) / sharded,
            fixed_s=0.125,
            shared_work_s=0.0,
        )

    def unit_bytes(self, choices: Choices) -> UnitBytes:
        draw = self._draw(choices, "bytes")
        units = self.problem.num_units
        sharded = choices.dp if choices.zero else 1
        state = draw.uniform(0.5, 1.0, units) * 20e6 / choices.tp / sharded
        saved = draw.uniform(0.5, 1.0, units) * 4e6 * choices.micro_batch / choices.tp
        saved = saved / 4 if choices.recompute == "full" else saved
        return UnitBytes(
            state=np.floor(state), saved=np.floor(saved), peak=np.floor(saved * 1.5),
            hidden=2e5 * choices.micro_batch, fixed=1e6,
        )  # fmt: skip

    def state_bytes(self, choices: Choices) -> Floats:
        return self.unit_bytes(choices).state

    def _draw(self, choices: Choices, what: str) -> np.random.Generator:
        return np.random.default_rng(
            [self.seed, choices.tp, choices.micro_batch, choices.sequence_parallel, len(what)]
        )

    def predict(self, layout: Layout) -> Prediction:
        choices = choices_of(layout)
        prices = self.unit_seconds(choices)
        units = [_units(layout, stage) for stage in range(layout.pp)]
        work, transfer = {}, {}
        for stage, span in enumerate(units):
            work[stage, ActionKind.FORWARD] = (float(prices.forward_s[span].sum()),)
            work[stage, ActionKind.BACKWARD] = (float(prices.backward_s[span].sum()),)
        for stage in range(layout.pp - 1):
            forward = float(prices.receive_forward_s[stage + 1])
            transfer[stage, ActionKind.SEND_FORWARD] = forward
            backward = float(prices.receive_backward_s[stage])
            transfer[stage + 1, ActionKind.SEND_BACKWARD] = backward
        timeline = simulate(program_of(layout), PipelineCosts(work, transfer))
        ready = [
            timeline.ends_s[stage][-1] + float(prices.reduction_s[span].sum())
            for stage, span in enumerate(units)
        ]
        ready[0] = ready[-1] = max(ready[0], ready[-1]) + prices.tied_sum_s
        reduced = max(ready)
        updated = max(float(prices.optimizer_s[span].sum()) for span in units)
        return self._prediction(layout, units, prices.fixed_s + reduced + updated)

    def _prediction(self, layout: Layout, units: list[slice], step_s: float) -> Prediction:
        held = self.unit_bytes(choices_of(layout))
        parts = []
        for stage, span in enumerate(units):
            in_flight = 1 if layout.pp == 1 else min(layout.pp - stage, layout.micro_batches)
            if layout.schedule == "gpipe":
                in_flight = layout.micro_batches
            saved = held.saved[span]
            reached = np.cumsum(saved) - saved + held.peak[span]
            received = held.hidden * (stage > 0)
            sent = held.hidden * (stage < layout.pp - 1)
            alive = (in_flight - 1) * (saved.sum() + received - sent) + received + reached.max()
            parts.append(MemoryParts(
                weights=int(held.state[span].sum()), gradients=0, optimizer_state=0,
                activations=int(alive), gathered_weights=0, transient=0, fixed=int(held.fixed),
            ))  # fmt: skip
        peaks = tuple(part.total_bytes for part in parts)
        tokens_per_s = self.problem.training.tokens_per_step / step_s
        return Prediction(
            step_time_s=step_s, step_time_band_s=(step_s * 0.9, step_s * 1.1),
            tokens_per_s=tokens_per_s, tokens_per_s_per_gpu=tokens_per_s / layout.world,
            mfu=None, bubble_fraction=0.0, peak_memory_bytes=peaks,
            memory_capacity_bytes=self.capacity_bytes,
            memory_verdict="fits" if max(peaks) <= self.capacity_bytes else "does_not_fit",
            breakdown=Breakdown(other=step_s), memory=tuple(parts),
        )  # fmt: skip


def _units(layout: Layout, stage: int) -> slice:
    """The units of a stage: embedding 0, layer i at i + 1, final norm with head last."""
    first, stop = layout.stages[stage].layers
    holds = layout.stages[stage].holds
    return slice(0 if "embedding" in holds else first + 1, stop + 1 + ("head" in holds))


def choices_of(layout: Layout) -> Choices:
    return Choices(
        layout.tp, layout.pp, layout.dp, layout.micro_batch, layout.micro_batches, layout.zero,
        layout.sequence_parallel, layout.recompute[0].policy, str(layout.schedule or "none"),
    )  # fmt: skip


ProblemFactory = Callable[..., Problem]
CostsFactory = type[InventedCosts]


@pytest.fixture
def make_problem() -> ProblemFactory:
    return tiny_problem


@pytest.fixture
def make_costs() -> CostsFactory:
    return InventedCosts
