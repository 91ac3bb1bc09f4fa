"""Memory of software stacks, held to published formulas and to counts by hand."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.cost_models.pricing import stack_model
from shardwright.cost_models.stacks.layers import OPERATORS, layer_work
from shardwright.cost_models.stacks.memory import num_communicators
from shardwright.cost_models.stacks.sharding import Sharding
from shardwright.cost_models.stacks.step import StackModel
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.specs import (
    Layout,
    MemoryParts,
    ModelSpec,
    OptimizerSpec,
    Recompute,
    SoftwareSpec,
    TrainingSpec,
)
from shardwright.specs.sources import model_from_config, resolve_model

S, B, H, A, L, V = 1024, 2, 2048, 16, 8, 51200
"""Sequence, micro-batch, hidden size, heads, layers and vocabulary of a small GPT."""


def gpt() -> ModelSpec:
    config = {
        "model_type": "gpt2", "n_embd": H, "n_head": A, "n_layer": L, "n_positions": S,
        "vocab_size": V,
    }  # fmt: skip
    return model_from_config(config, name="gpt", source="test").spec


def sharding(**changes: Any) -> Sharding:
    fields: dict[str, Any] = {"batch": B, "seq_len": S, "flash": False, "dropout": True}
    return Sharding(**{**fields, **changes})


def saved(policy: frozenset[str] | None = frozenset(), **changes: Any) -> float:
    layer = next(iter(gpt().decoder.layers()))
    return layer_work(layer, sharding(**changes), policy).saved_bytes


def job(
    framework: str = "generic", devices: int = 8, model: ModelSpec | None = None, **changes: Any
) -> StackModel:
    training = TrainingSpec(**{"global_batch": 64, "seq_len": S, **changes})
    nodes = max(1, devices // 8)
    cluster = resolve_cluster(f"a100-sxm4-80gb:{devices // nodes}x{nodes},inter=100GB/s")
    software = SoftwareSpec(framework=framework)
    return stack_model(model or gpt(), training, cluster, software)


def layout(model: StackModel, **choices: Any) -> Layout:
    return Layout.of(model.model, model.training, **choices)


def peak(model: StackModel, rank: int = 0, **choices: Any) -> MemoryParts:
    return model.memory(layout(model, **choices))[rank]


STATISTICS = 2 * 8 * S * B
"""Mean and deviation in fp32 of two norms, which the formulas of the paper leave out."""


class TestKorthikantiFormulas:
    """Reducing Activation Recomputation, arXiv 2205.05198: table 2, for one layer."""

    def test_no_parallelism(self) -> None:
        assert saved() == S * B * H * (34 + 5 * A * S / H) + STATISTICS

    def test_tensor_parallel(self) -> None:
        t = 4
        assert saved(tp=t) == S * B * H * (10 + 24 / t + 5 * A * S / (H * t)) + STATISTICS

    def test_tensor_and_sequence_parallel(self) -> None:
        t = 4
        got = saved(tp=t, sequence_parallel=True)
        assert got == S * B * H / t * (34 + 5 * A * S / H) + STATISTICS / t

    def test_selective(self) -> None:
        got = saved(frozenset({"core_attn"}), tp=4, sequence_parallel=True)
        assert got == 34 * S * B * H / 4 + STATISTICS / 4

    def test_full_keeps_the_input_without_its_dropout_mask(self) -> None:
        assert saved(None, tp=4) == 2 * S * B * H

    def test_ring_context_parallelism_divides_tokens(self) -> None:
        assert saved(cp=2, flash=True) == pytest.approx(saved(flash=True) / 2)


class TestLlamaLayer:
    def layer(self, policy: frozenset[str] | None = frozenset(), **changes: Any) -> float:
        block = next(iter(resolve_model("llama-3.1-8b").decoder.layers()))
        one = Sharding(**{"batch": 1, "seq_len": 8192, **changes})
        return layer_work(block, one, policy).saved_bytes / 8192

    def test_bytes_per_token(self) -> None:
        """8h + 2(n + 2g)d + 2nd + 4n + 6f = 139,392, and norms' statistics."""
        assert self.layer() == 139_392 + 16

    def test_narrow_operands_are_kept_in_a_byte(self) -> None:
        """Both norms' outputs and the activation's lose a byte each; attention's output, which its
        backward needs wide, gains a narrow copy."""
        got = self.layer(matmul_bytes=1, keeps_narrow=True)
        assert got == 139_392 + 16 - 2 * 4096 - 14336 + 4096

    def test_operator_recomputation_keeps_half_of_the_products(self) -> None:
        kept = 2 * 4096 + 2 * 4096 + 4 * 32  # the layer's input, attention's output, statistics
        products = 2 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)
        assert self.layer(frozenset({OPERATORS})) == kept + products / 2


class TestState:
    """Bytes per trained parameter, from the whole of one rank."""

    def per_parameter(self, part: MemoryParts, count: float) -> float:
        return (part.weights + part.gradients + part.optimizer_state) / count

    @property
    def count(self) -> float:
        return float(sum(block.num_parameters for block in gpt().decoder.blocks))

    def test_distributed_optimizer(self) -> None:
        """Megatron's: 6 + 12 / d."""
        got = peak(job(), dp=8, zero=1, micro_batch=1)
        assert self.per_parameter(got, self.count) == pytest.approx(6 + 12 / 8, rel=1e-3)

    def test_unsharded(self) -> None:
        got = peak(job(), dp=8, micro_batch=1)
        assert self.per_parameter(got, self.count) == pytest.approx(18, rel=1e-3)

    def test_fp16_with_fp16_gradients(self) -> None:
        """4 + 16 / d, of which 4 / d are gradients in fp32 that only the optimizer's step has."""
        model = job("megatron-deepspeed", precision="fp16")
        got = peak(model, dp=8, zero=1, micro_batch=1)
        assert self.per_parameter(got, self.count) == pytest.approx(4 + 12 / 8, rel=1e-3)

    def test_the_step_is_the_fullest_moment_of_a_small_batch(self) -> None:
        model = job("megatron-deepspeed", precision="fp16", seq_len=16)
        got = peak(model, dp=1, tp=8, micro_batch=1)
        assert got.activations == 0
        assert got.transient == pytest.approx(2 * got.gradients, rel=1e-6)

    def test_bf16_keeps_gradients_beside_their_sums_in_deepspeed(self) -> None:
        got = peak(job("megatron-deepspeed"), dp=8, zero=1, micro_batch=1)
        assert got.gradients == pytest.approx(6 * self.count, rel=1e-3)

    def test_fully_sharded(self) -> None:
        """The sharded weights are the fp32 ones: 16 / d."""
        got = peak(job("torchtitan"), dp=8, zero=3, micro_batch=1)
        assert self.per_parameter(got, self.count) == pytest.approx(16 / 8, rel=1e-3)

    def test_units_that_are_whole(self) -> None:
        """Two units in bf16, and the largest one's gradient in bf16 and in fp32."""
        got = peak(job("torchtitan"), dp=8, zero=3, micro_batch=1)
        sizes = sorted((float(b.num_parameters) for b in gpt().decoder.blocks if
                        b.kind == "embedding"), reverse=True)  # fmt: skip
        layer = 12 * H * H + 13 * H
        largest = max(*sizes, layer)
        assert got.gathered_weights == pytest.approx(2 * (largest + layer) + 6 * largest, rel=1e-3)

    def test_pipelines_keep_units_whole_in_torchtitan(self) -> None:
        model = job("torchtitan", devices=16)
        got = peak(model, rank=1, dp=8, pp=2, zero=3, micro_batch=1)
        own = got.optimizer_state / (8 / 8)
        assert got.gathered_weights == 0
        assert got.weights == pytest.approx(own * (2 + 4 / 8), rel=1e-3)
        assert got.gradients == pytest.approx(own * (4 + 4 / 8), rel=1e-3)

    @pytest.mark.parametrize(
        ("optimizer", "low", "high"),
        [("sgd", 4 + 4, 4 + 4), ("adamw-8bit", 4 + 2, 4 + 2.1), ("adafactor", 4, 4.02),
         ("muon", 4 + 4, 4 + 8)],
    )  # fmt: skip
    def test_optimizers(self, optimizer: str, low: float, high: float) -> None:
        """Master weights take 4 bytes; adafactor's moments are rows and columns."""
        model = job(optimizer=OptimizerSpec(name=optimizer), model=resolve_model("llama-3.1-8b"))
        got = peak(model, dp=8, micro_batch=1)
        each = got.optimizer_state / (got.weights / 2)
        assert low * 0.999 <= each <= high

    def test_qlora(self) -> None:
        """Frozen weights in four bits and their scales; gradients of adapters alone."""
        model = job(trainable="qlora:16", model=resolve_model("llama-3.1-8b"))
        got = peak(model, dp=8, micro_batch=1)
        assert 0.5 < got.weights / 8.03e9 < 0.54
        assert got.gradients < 0.02 * got.weights * 4

    def test_offloaded_optimizer_lies_on_the_host(self) -> None:
        model = job()
        here = peak(model, dp=8, zero=1, micro_batch=1)
        away = layout(model, dp=8, zero=1, micro_batch=1, offload=("optimizer",))
        assert model.memory(away)[0].optimizer_state == 0
        assert model.host_bytes(away) == (here.optimizer_state,)

    def test_offloaded_weights_leave_two_units(self) -> None:
        model = job()
        got = peak(model, dp=8, zero=1, micro_batch=1, offload=("parameters",))
        embedding = max(b.num_parameters for b in gpt().decoder.blocks if b.kind == "embedding")
        assert got.weights == pytest.approx(2 * 2 * embedding, rel=1e-3)


class TestPipeline:
    def rows(self, **choices: Any) -> tuple[MemoryParts, ...]:
        model = job(devices=4)
        return model.memory(layout(model, pp=4, micro_batch=B, **choices))

    def test_1f1b_keeps_as_many_as_there_are_stages_behind(self) -> None:
        rows = self.rows()
        assert rows[1].activations == 3 * rows[2].activations / 2

    def test_full_recomputation_keeps_one_input_a_layer(self) -> None:
        """Two layers a stage; the last stage keeps the input of the final norm and of the head."""
        rows = self.rows(recompute=Recompute(policy="full"))
        stream = 2 * S * B * H
        assert rows[0].activations == 4 * 2 * stream
        assert rows[1].activations == 3 * 2 * stream
        assert rows[3].activations == pytest.approx(4 * stream, rel=1e-2)

    def test_last_stage_has_its_own_copy_of_a_tied_table(self) -> None:
        rows = self.rows()
        assert rows[3].weights - rows[1].weights == pytest.approx(2 * V * H, rel=1e-3)

    def test_a_v_has_one_copy(self) -> None:
        model = job(devices=4)
        rows = model.memory(layout(model, pp=4, vpp=2, schedule="zb-v", micro_batch=1))
        assert rows[0].weights - rows[1].weights < 2.1 * (V + S) * H

    def test_offloaded_activations_leave_two_units(self) -> None:
        rows = self.rows(offload=("activations",))
        assert rows[0].activations < 2 * saved(dropout=False) * 1.01


class TestLoss:
    def moment(self, framework: str, **choices: Any) -> float:
        model = job(framework)
        got = peak(model, micro_batch=8, recompute=Recompute(policy="full"), **choices)
        return got.transient / (8 * S * V)

    def test_copies_of_logits(self) -> None:
        head_input = 2 * H / V  # its gradient
        assert self.moment("generic", dp=8) == pytest.approx(10 + head_input, rel=1e-6)
        assert self.moment("torchtitan", dp=8) == pytest.approx(14 + head_input, rel=1e-6)

    def test_chunks(self) -> None:
        assert self.moment("torchtitan", dp=8, loss_chunks=2) < 0.6 * self.moment(
            "torchtitan", dp=8
        )


class TestReadings:
    def test_kinds_in_order(self) -> None:
        model = job()
        one = layout(model, dp=8, zero=1, micro_batch=1)
        tensors, reserved, device = (
            model.memory_of_kind(one, kind)[0]
            for kind in ("allocated_or_unknown", "reserved", "device")
        )
        parameters = model.parameters
        assert reserved == pytest.approx(
            tensors * (1 + parameters["memory.allocator_fraction"]), rel=1e-9
        )
        fixed = parameters["memory.first_communicator_bytes"] + parameters["memory.context_bytes"]
        fixed += parameters["memory.communicator_bytes"]  # the world, and dp
        assert device == pytest.approx(reserved + fixed, abs=4)

    def test_old_software_has_a_larger_context_and_reads_the_device(self) -> None:
        model = job("megatron-lm-2021", precision="fp16")
        one = layout(model, dp=8, micro_batch=1)
        device = model.memory_of_kind(one, "device")
        assert model.memory_of_kind(one, "allocated_or_unknown") == device
        context = model.memory(one)[0].fixed - device[0]
        assert context < 0

    def test_communicators(self) -> None:
        model = job(devices=64)
        assert num_communicators(layout(job(devices=1))) == 0
        assert num_communicators(layout(model, dp=8)) == 2
        # world, tp, dp, model, and three of the pipeline
        assert num_communicators(layout(model, tp=2, pp=4, dp=8)) == 7


class TestVerdict:
    def verdict(self, total: float, framework: str = "generic") -> str:
        model = job(framework)
        one = peak(model, dp=8, micro_batch=1)
        changed = one.model_copy(
            update={"weights": round(total * model.capacity_bytes) - one.total_bytes + one.weights}
        )
        return model.verdict((changed,))

    def test_of_the_expected_peak(self) -> None:
        assert self.verdict(0.7) == "fits"
        assert self.verdict(0.95) == "edge"
        assert self.verdict(1.05) == "does_not_fit"

    def test_expandable_segments_lose_less(self) -> None:
        training = TrainingSpec(global_batch=64, seq_len=S)
        cluster = resolve_cluster("a100-sxm4-80gb:8x1,inter=100GB/s")
        fixed = []
        for allocator in ("native", "expandable_segments"):
            software = SoftwareSpec(framework="generic", allocator=allocator)
            model = stack_model(gpt(), training, cluster, software)
            fixed.append(peak(model, dp=8, micro_batch=1).fixed)
        assert fixed[1] < fixed[0]
