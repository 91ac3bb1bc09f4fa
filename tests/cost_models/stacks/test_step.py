"""The step as a whole: sums, limits, monotony, and what each choice adds or takes away."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.cost_models.flops import model_flops_megatron
from shardwright.cost_models.stacks.links import Links, axes
from shardwright.cost_models.stacks.step import StackModel
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.specs import Layout, Recompute, SoftwareSpec, TrainingSpec
from shardwright.specs.sources import resolve_model
from tests.cost_models.stacks.jobs import (
    LAYOUTS,
    MODEL,
    PROFILE,
    SOFTWARE,
    TRAINING,
    layout,
    parameters,
    stack,
)

ALONE = layout()
OURS = stack()


def named(one: Layout) -> str:
    parts = (f"{n}{getattr(one, n)}" for n in ("tp", "cp", "pp", "vpp", "dp", "zero"))
    return "-".join((*parts, one.schedule or ""))


@pytest.mark.parametrize("chosen", LAYOUTS, ids=named)
class TestEveryLayout:
    def test_terms_sum_to_the_step(self, chosen: Layout) -> None:
        found = OURS.predict(chosen)
        assert found.breakdown.total_s == pytest.approx(found.step_time_s, rel=1e-9)
        assert all(value >= 0 for value in found.breakdown.model_dump().values())

    def test_two_models_agree_to_the_last_bit(self, chosen: Layout) -> None:
        assert stack().predict(chosen) == OURS.predict(chosen)
        assert OURS.step_time_s(chosen) == OURS.predict(chosen).step_time_s

    def test_a_model_with_other_numbers_is_a_new_model(self, chosen: Layout) -> None:
        changed: dict[str, Any] = {
            "stack__compute_ratio": 1.3,
            "stack__host_s": 5e-5,
            "kernel__gap_s": 1e-6,
        }
        moved = stack()
        moved.predict(chosen)
        moved.reprice(parameters(**changed))
        assert moved.predict(chosen) == stack(**changed).predict(chosen)
        moved.reprice(parameters())
        assert moved.predict(chosen) == OURS.predict(chosen)

    @pytest.mark.parametrize(
        "name",
        ["stack__compute_ratio", "stack__attention_ratio", "stack__traffic_ratio",
         "stack__host_s", "stack__collective_ratio"],
    )  # fmt: skip
    def test_slower_software_is_never_faster(self, chosen: Layout, name: str) -> None:
        slower: dict[str, Any] = {name: 2 * parameters()[name.replace("__", ".")]}
        assert stack(**slower).step_time_s(chosen) >= OURS.step_time_s(chosen)

    @pytest.mark.parametrize("what", ["matmul", "memory", "inside", "between"])
    def test_better_hardware_is_never_slower(self, chosen: Layout, what: str) -> None:
        better = StackModel(MODEL, TRAINING, improved(PROFILE, what), SOFTWARE, parameters())
        assert better.step_time_s(chosen) <= OURS.step_time_s(chosen) * (1 + 1e-12)

    def test_what_hides_lies_between_nothing_and_everything(self, chosen: Layout) -> None:
        found = [
            stack(stack__hidden_fraction=share).step_time_s(chosen)
            for share in (1.0, 0.75, 0.5, 0.25, 0.0)
        ]
        assert found == sorted(found)


def improved(profile: HardwareProfile, what: str) -> HardwareProfile:
    """The same cluster, twice as good in one thing."""
    (group,) = profile.devices.groups
    device, intra, inter = group.accelerator, group.intra_node, group.inter_node
    assert inter is not None
    if what == "matmul":
        peaks = {dtype: 2 * rate for dtype, rate in device.peak_flops_per_s.items()}
        device = device.model_copy(update={"peak_flops_per_s": peaks})
    if what == "memory":
        wide = 2 * device.memory_bandwidth_bytes_per_s
        device = device.model_copy(update={"memory_bandwidth_bytes_per_s": wide})
    if what == "inside":
        wide = 2 * intra.bandwidth_bytes_per_s
        intra = intra.model_copy(update={"bandwidth_bytes_per_s": wide})
    if what == "between":
        wide = 2 * inter.bandwidth_bytes_per_s
        inter = inter.model_copy(update={"bandwidth_bytes_per_s": wide})
    changed = group.model_copy(
        update={"accelerator": device, "intra_node": intra, "inter_node": inter}
    )
    devices = profile.devices.model_copy(update={"groups": (changed,)})
    return profile.model_copy(update={"devices": devices})


class TestOneRank:
    def test_micro_batches_follow_one_another(self) -> None:
        """Without a pipeline a step is m times a micro-batch, and what comes once."""
        (stage,) = OURS.stage_times(ALONE)
        each = stage.forward_s + stage.backward_input_s + stage.backward_weight_s
        twice = TRAINING.model_copy(update={"global_batch": 128})
        longer = stack(training=twice).step_time_s(layout(training=twice))
        assert longer - OURS.step_time_s(ALONE) == pytest.approx(64 * each)
        assert OURS.step_time_s(ALONE) > 64 * each

    def test_nothing_is_communicated(self) -> None:
        found = OURS.predict(ALONE).breakdown
        for term in ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm_exposed", "bubble"):
            assert getattr(found, term) == pytest.approx(0.0, abs=1e-12), term

    def test_mfu_is_of_all_devices(self) -> None:
        chosen = layout(dp=32)
        found = OURS.predict(chosen)
        peak = 32 * PROFILE.devices.accelerator.peak_flops_per_s["bf16"]
        flops = model_flops_megatron(MODEL, TRAINING)
        assert found.mfu is not None
        assert found.mfu == pytest.approx(flops / found.step_time_s / peak)
        assert found.tokens_per_s == pytest.approx(64 * 2048 / found.step_time_s)
        assert 0.2 < found.mfu < 0.8

    def test_the_band_surrounds_the_prediction(self) -> None:
        low, high = OURS.predict(ALONE).step_time_band_s
        assert low < OURS.step_time_s(ALONE) < high


class TestHost:
    def test_a_slow_host_sets_the_pace(self) -> None:
        (fast,) = OURS.stage_times(ALONE)
        slow = stack(stack__host_s=1e-2)
        (stage,) = slow.stage_times(ALONE)
        assert stage.forward_s == pytest.approx(stage.forward.kernels * 1e-2, rel=0.01)
        assert stage.forward == fast.forward

    def test_a_fast_host_costs_nothing(self) -> None:
        (stage,) = stack(stack__host_s=1e-12).stage_times(ALONE)
        assert stage.forward_s == pytest.approx(stage.forward.total_s, rel=1e-6)

    def test_neither_is_ever_undercut(self) -> None:
        for host_s in (1e-6, 3e-6, 1e-5, 3e-5, 1e-4):
            (stage,) = stack(stack__host_s=host_s).stage_times(ALONE)
            assert stage.forward_s >= max(stage.forward.total_s, stage.forward.kernels * host_s)

    def test_ranks_that_meet_wait_for_the_latest_host(self) -> None:
        slow = stack(stack__host_s=1e-2)
        one, eight = (slow.stage_times(layout(tp=tp, dp=32 // tp))[0] for tp in (1, 8))
        per_kernel = [stage.forward_s / stage.forward.kernels for stage in (one, eight)]
        assert per_kernel[1] > per_kernel[0] * 1.1


class TestZero:
    """Volumes of each stage against the links' price of them; 4 nodes of 8."""

    P = float(MODEL.num_parameters)
    LINKS = Links(PROFILE, parameters())

    def stage(self, **choices: Any) -> Any:
        chosen = layout(dp=32, **choices)
        (stage,) = stack(stack__hidden_fraction=0.0).stage_times(chosen)
        return stage

    def test_0_sums_whole_gradients(self) -> None:
        stage = self.stage()
        assert stage.reduction_s == self.LINKS.seconds("all_reduce", self.P * 4, 32, 1)
        assert stage.publish_s == stage.forward_shards_s == 0

    def test_1_scatters_gradients_and_gathers_weights(self) -> None:
        stage = self.stage(zero=1)
        assert stage.reduction_s == self.LINKS.seconds("reduce_scatter", self.P * 4, 32, 1)
        assert stage.publish_s == self.LINKS.seconds("all_gather", self.P * 2 / 32, 32, 1)

    def test_2_scatters_with_every_micro_batch(self) -> None:
        stage = self.stage(zero=2)
        assert stage.reduction_s == stage.forward_shards_s == 0
        assert stage.backward_shards_s > 0
        assert stage.publish_s == self.LINKS.seconds("all_gather", self.P * 2 / 32, 32, 1)

    def test_3_gathers_twice_as_well(self) -> None:
        stage = self.stage(zero=3)
        assert stage.publish_s == stage.reduction_s == 0
        scatters = self.stage(zero=2).backward_shards_s
        assert stage.backward_shards_s == pytest.approx(stage.forward_shards_s + scatters)
        whole = self.LINKS.seconds("all_gather", self.P * 2 / 32, 32, 1)
        assert whole < stage.forward_shards_s < 3 * whole  # unit by unit: more latency

    def test_3_gathers_once_where_weights_stay(self) -> None:
        stage = self.stage(zero=3, reshard_after_forward=False)
        assert stage.backward_shards_s == pytest.approx(self.stage(zero=2).backward_shards_s)

    def test_copies_of_shards_are_summed(self) -> None:
        stage = self.stage(zero=3, zero_shard_degree=8)
        assert stage.reduction_s == self.LINKS.seconds("all_reduce", self.P * 4 / 8, 4, 8)

    def test_states_are_updated_by_their_owners(self) -> None:
        found = [self.stage(zero=zero).optimizer_s for zero in (0, 1, 2)]
        assert found[0] > found[1] > found[2]
        assert self.stage(zero=3).optimizer_s == found[2]
        assert found[2] == pytest.approx(found[0] / 32)

    def test_gradients_in_two_bytes_are_half(self) -> None:
        narrow = TRAINING.model_copy(update={"gradient_dtype": "bf16"})
        (stage,) = stack(training=narrow).stage_times(layout(training=narrow, dp=32))
        assert stage.reduction_s == self.LINKS.seconds("all_reduce", self.P * 2, 32, 1)

    def test_gradients_that_are_added_apart_cost_each_micro_batch(self) -> None:
        apart = SOFTWARE.model_copy(update={"fused_accumulation": False})
        (plain,), (slow,) = (
            stack(software=s).stage_times(layout(dp=32)) for s in (SOFTWARE, apart)
        )
        assert slow.backward_weight_s > plain.backward_weight_s
        assert slow.forward_s == plain.forward_s

    def test_without_overlap_the_whole_reduction_shows(self) -> None:
        slow = SOFTWARE.model_copy(update={"overlap_gradients": False, "overlap_weights": False})
        found = stack(software=slow).predict(layout(dp=32, zero=1)).breakdown.dp_comm_exposed
        stage = self.stage(zero=1)
        assert found == pytest.approx(stage.reduction_s + stage.publish_s)
        hidden = OURS.predict(layout(dp=32, zero=1)).breakdown.dp_comm_exposed
        assert hidden < found

    def test_what_hides_is_bounded_by_what_it_hides_behind(self) -> None:
        (stage,) = OURS.stage_times(layout(dp=32))
        backward = stage.backward_input_s + stage.backward_weight_s
        all_hidden = stack(stack__hidden_fraction=1.0).predict(layout(dp=32))
        exposed = max(0.0, stage.reduction_s - backward)
        assert all_hidden.breakdown.dp_comm_exposed == pytest.approx(exposed)


class TestPipeline:
    def test_messages_sent_in_parts_cross_nodes_sooner(self) -> None:
        parts = SOFTWARE.model_copy(update={"scatter_messages": True})

        def seconds(software: SoftwareSpec, **choices: Any) -> float:
            chosen = layout(tp=8, pp=4, **choices)
            return stack(software=software).predict(chosen).breakdown.pp_comm

        assert seconds(parts) < 0.5 * seconds(SOFTWARE)
        split = {"sequence_parallel": True}  # each rank has its own tokens: nothing to share
        assert seconds(parts, **split) == seconds(SOFTWARE, **split)

    def test_the_bubble_shrinks_with_micro_batches_and_virtual_stages(self) -> None:
        def bubble(batch: int, **choices: Any) -> float:
            training = TRAINING.model_copy(update={"global_batch": batch})
            chosen = layout(training=training, pp=4, dp=8, **choices)
            return stack(training=training).predict(chosen).bubble_fraction

        assert bubble(64) > bubble(128) > bubble(256) > 0
        assert bubble(64, vpp=2, schedule="interleaved-1f1b") < bubble(64)

    def test_an_even_pipeline_has_the_textbooks_bubble(self) -> None:
        """About (p - 1) / (m + p - 1): the head makes one stage longer, the optimizer the step."""
        model = resolve_model("gpt-3-6.7b")
        training = TrainingSpec(global_batch=64, seq_len=2048)
        chosen = Layout.of(model, training, pp=4, dp=8)
        found = stack(model, training).predict(chosen).bubble_fraction
        assert found == pytest.approx(3 / (8 + 3), rel=0.15)

    def test_no_rank_is_done_before_its_own_work(self) -> None:
        for schedule in ("gpipe", "1f1b", "zb-h1"):
            chosen = layout(pp=4, dp=8, schedule=schedule)
            longest = max(
                stage.forward_s + stage.backward_input_s + stage.backward_weight_s
                for stage in OURS.stage_times(chosen)
            )
            assert OURS.step_time_s(chosen) > 8 * longest

    def test_prediction_layers_burden_the_last_stage(self) -> None:
        model = resolve_model("deepseek-v3")
        blocks = tuple(b for b in model.decoder.blocks if b.kind != "mtp")
        tower = model.decoder.model_copy(update={"blocks": blocks})
        plain = model.model_copy(update={"towers": (tower,)})
        training = TrainingSpec(global_batch=16, seq_len=2048)
        chosen = Layout.of(model, training, pp=4, ep=8, dp=8)
        with_it, without = (stack(one, training).stage_times(chosen) for one in (model, plain))
        assert with_it[:-1] == without[:-1]
        assert with_it[-1].forward_s > without[-1].forward_s
        assert with_it[-1].reduction_s > without[-1].reduction_s


class TestChoices:
    def test_recomputation_costs_a_forward_pass(self) -> None:
        plain = OURS.predict(layout(dp=32)).breakdown
        full = OURS.predict(layout(dp=32, recompute=Recompute(policy="full"))).breakdown
        core = OURS.predict(layout(dp=32, recompute=Recompute(policy="selective"))).breakdown
        assert plain.recompute == 0
        assert 0 < core.recompute < full.recompute < plain.compute_forward
        assert full.compute_backward == pytest.approx(plain.compute_backward, rel=0.02)

    def test_recomputation_repeats_collectives(self) -> None:
        choices: dict[str, Any] = {"tp": 8, "dp": 4, "sequence_parallel": True}
        plain, full = (
            OURS.predict(layout(**choices, recompute=recompute)).breakdown.tp_comm
            for recompute in (None, Recompute(policy="full"))
        )
        assert full > 1.2 * plain

    def test_collectives_show_in_full_in_a_precision_that_cannot_overlap_them(self) -> None:
        chosen = layout(tp=2, sequence_parallel=True)

        def tp_s(**facts: Any) -> float:
            software = SOFTWARE.model_copy(update=facts)
            return stack(software=software).predict(chosen).breakdown.tp_comm

        overlapped = {"overlap_tensor_parallel": True}
        excepted = {**overlapped, "overlap_tensor_parallel_except": (TRAINING.precision,)}
        assert tp_s(**overlapped) < tp_s() == tp_s(**excepted)

    def test_adapters_are_cheaper_than_weights(self) -> None:
        adapted = TRAINING.model_copy(update={"trainable": "lora:16"})
        full, low = (
            stack(training=training).predict(layout(training=training, dp=32))
            for training in (TRAINING, adapted)
        )
        assert low.step_time_s < full.step_time_s
        assert low.breakdown.compute_backward < 0.85 * full.breakdown.compute_backward
        assert low.breakdown.optimizer < 0.1 * full.breakdown.optimizer

    def test_a_frozen_decoder_keeps_what_its_input_gradients_need(self) -> None:
        model = resolve_model("llava-1.5-7b")
        kept = {}
        for frozen in ("frozen:vision", "frozen:vision+decoder"):
            training = TrainingSpec(global_batch=32, seq_len=1024, trainable=frozen)
            chosen = Layout.of(model, training, dp=32)
            (memory,) = stack(model, training).memory(chosen)
            kept[frozen] = memory.activations
        trained, handed_on = kept.values()
        assert handed_on == pytest.approx(trained, rel=0.02)

    def test_fp8_speeds_up_less_than_twice(self) -> None:
        narrow = TRAINING.model_copy(update={"precision": "fp8-tensor"})
        wide, fast = (
            stack(training=training).step_time_s(layout(training=training, dp=32))
            for training in (TRAINING, narrow)
        )
        assert wide / 2 < fast < wide

    def test_stored_scores_cost_more_than_a_fused_kernel(self) -> None:
        plain = stack(software=SOFTWARE.model_copy(update={"attention_kernel": "math"}))
        assert plain.step_time_s(layout(dp=32)) > OURS.step_time_s(layout(dp=32))

    def test_experts_reduce_over_their_own_group(self) -> None:
        model = resolve_model("mixtral-8x7b")
        training = TrainingSpec(global_batch=32, seq_len=2048)
        chosen = Layout.of(model, training, ep=8, dp=32)
        assert axes(chosen)["edp"] == (4, 8)
        (stage,) = stack(model, training).stage_times(chosen)
        links = Links(PROFILE, parameters())
        experts = 32 * 3 * 4096 * 14336 * 8
        dense = model.num_parameters - experts
        expected = links.seconds("all_reduce", dense * 4.0, 32, 1)
        expected += links.seconds("all_reduce", experts / 8 * 4.0, 4, 8)
        assert stage.reduction_s == pytest.approx(expected)
        assert stack(model, training).predict(chosen).breakdown.ep_comm > 0

    def test_context_parallelism_is_cheaper_where_it_hides(self) -> None:
        training = TrainingSpec(global_batch=4, seq_len=32768)
        model = MODEL.model_copy(update={"max_seq_len": None})
        took = {
            kind: stack(model, training)
            .predict(layout(model, training, cp=8, dp=4, cp_kind=kind))
            .breakdown.cp_comm
            for kind in ("ring", "all_gather", "all_to_all")
        }
        assert all(seconds > 0 for seconds in took.values())
        assert took["ring"] < took["all_gather"]


def test_a_slow_device_among_fast_ones_sets_the_pace() -> None:
    fast = PROFILE.devices.groups[0]
    slow = resolve_cluster("dgx-a100-80gb:4").devices.groups[0]
    devices = PROFILE.devices.model_copy(
        update={"groups": (fast, slow), "between_groups": slow.inter_node}
    )
    mixed = PROFILE.model_copy(update={"devices": devices})
    both, alone = (
        StackModel(MODEL, TRAINING, one, SoftwareSpec(framework="generic"), parameters())
        for one in (mixed, resolve_cluster("dgx-a100-80gb:4"))
    )
    assert both.stage_times(ALONE)[0].forward_s == alone.stage_times(ALONE)[0].forward_s
    assert both.capacity_bytes == min(alone.capacity_bytes, OURS.capacity_bytes)
