from __future__ import annotations

from typing import Any

import pytest

from shardwright.planner.validation.candidates import MOST_LAYOUTS, layouts_of, spares_of
from shardwright.planner.validation.problem import Case, CaseMaker
from shardwright.specs import InputError, Layout, Recompute
from tests.planner.validation import rows


def layouts(defaults: dict[str, Any] | None = None, **changes: Any) -> tuple[Layout, ...]:
    case = CaseMaker(defaults=lambda row: defaults or {}).case_of(rows.row(**changes))
    assert isinstance(case, Case), case
    return layouts_of(case)


def only(defaults: dict[str, Any] | None = None, **changes: Any) -> Layout:
    (layout,) = layouts(defaults, **changes)
    return layout


def open_values(name: str, defaults: dict[str, Any] | None = None, **changes: Any) -> list[Any]:
    return sorted({getattr(layout, name) for layout in layouts(defaults, **changes)})


def policies(defaults: dict[str, Any] | None = None, **changes: Any) -> list[Recompute]:
    return list(dict.fromkeys(layout.recompute[0] for layout in layouts(defaults, **changes)))


def test_a_whole_row_is_one_layout() -> None:
    layout = only()
    assert (layout.tp, layout.pp, layout.dp, layout.micro_batch) == (2, 2, 2, 2)
    assert (layout.zero, layout.zero_shard_degree, layout.num_microbatches) == (1, 2, 4)
    assert layout.recompute[0].policy == "full"
    assert layout.schedule == "1f1b"


class TestGrid:
    def test_one_missing_degree_follows_from_the_others(self) -> None:
        assert only(parallel={"dp": None}).dp == 2
        assert only(parallel={"cp": None}).cp == 1
        assert only(parallel={"cp": None}, hardware={"gpus": 16}).cp == 2

    def test_missing_degrees_are_open(self) -> None:
        found = layouts(parallel={"tp": None, "pp": None, "dp": None})
        assert len({(layout.tp, layout.pp) for layout in found}) > 5
        assert all(layout.world == 8 for layout in found)
        assert len(found) <= 2 * MOST_LAYOUTS

    def test_degrees_that_do_not_fill_the_cluster_are_refused(self) -> None:
        with pytest.raises(InputError, match=r"tp 2 x pp 2 x dp 4 x cp 1 .* 8 GPUs"):
            layouts(parallel={"dp": 4})


class TestBatch:
    def test_micro_batches_are_powers_of_two_that_share_the_batch(self) -> None:
        changes = {"micro_batch": None, "num_microbatches": None, "global_batch": 24}
        assert open_values("micro_batch", parallel=changes) == [1, 2, 4]

    def test_a_stated_count_fixes_the_micro_batch(self) -> None:
        changes = {"micro_batch": None, "num_microbatches": 2}
        assert only(parallel=changes).micro_batch == 4

    def test_a_batch_that_cannot_be_shared_out_is_refused(self) -> None:
        with pytest.raises(InputError, match="does not divide the batch of 16"):
            layouts(parallel={"micro_batch": 3})


class TestSchedule:
    def test_chunks_make_it_interleaved(self) -> None:
        assert only(parallel={"schedule": None}).schedule == "1f1b"
        assert only(parallel={"schedule": None, "vpp": 2}).schedule == "interleaved-1f1b"

    @pytest.mark.parametrize(
        ("schedule", "vpp"),
        [("zb-h1", 1), ("zb-v", 2), ("dualpipe", 2), ("gpipe", 1), ("1F1B", 1)],
    )
    def test_a_schedule_may_fix_the_chunks(self, schedule: str, vpp: int) -> None:
        assert only(parallel={"schedule": schedule, "vpp": None}).vpp == vpp

    def test_else_they_divide_a_ranks_layers(self) -> None:
        changes = {"schedule": "interleaved-1f1b", "vpp": None}
        found = open_values("vpp", model={"layers": 12}, parallel=changes)
        assert found == [2, 3, 6]

    def test_one_pipeline_rank_has_no_schedule(self) -> None:
        layout = only(parallel={"pp": 1, "tp": 4, "vpp": None})
        assert (layout.schedule, layout.vpp) == (None, 1)

    def test_an_unknown_schedule_is_refused(self) -> None:
        with pytest.raises(InputError, match="spiral"):
            layouts(parallel={"schedule": "spiral"})


class TestStages:
    @pytest.mark.parametrize(
        ("layers", "remark", "sizes"),
        [
            (6, "first and last stage have one layer fewer than the others", [1, 2, 2, 1]),
            (6, None, [1, 2, 2, 1]),
            (8, None, [2, 2, 2, 2]),
            (7, None, [2, 2, 2, 1]),
            (8, "partition (embedding counted as a layer)", [2, 3, 2, 1]),
        ],
    )
    def test_embedding_and_head_may_count_as_layers(
        self, layers: int, remark: str | None, sizes: list[int]
    ) -> None:
        grid = {"tp": 1, "pp": 4, "other": remark}
        layout = only(model={"layers": layers}, parallel=grid)
        assert [stage.num_layers for stage in layout.stages] == sizes


class TestSharding:
    def test_zero_is_open_where_it_is_not_stated(self) -> None:
        assert open_values("zero", parallel={"zero": None}) == [0, 1]
        assert open_values("zero", {"zero": 3}, parallel={"zero": None}) == [3]
        assert open_values("zero", {"zero": 3}) == [1]

    def test_one_replica_has_nothing_to_shard(self) -> None:
        assert only(parallel={"tp": 4, "dp": 1, "zero": 3}).zero == 0

    def test_degrees(self) -> None:
        grid = {"tp": 1, "pp": 1, "dp": 16, "micro_batch": 1, "zero": 3}
        cluster = {"gpus": 16}
        everyone = only(hardware=cluster, parallel=grid)
        stated = only(hardware=cluster, parallel=grid | {"zero_shard_degree": 4})
        printed = {"zero_shard_degree": None, "as_printed": {"zero": "HSDP"}}
        hybrid = only(hardware=cluster, parallel=grid | printed)
        degrees = [layout.zero_shard_degree for layout in (everyone, stated, hybrid)]
        assert degrees == [16, 4, 8]

    def test_weights_may_stay_gathered(self) -> None:
        changes = {"zero": 3, "reshard_after_forward": False}
        assert not only(parallel=changes).reshard_after_forward


EXPERTS = {"experts": 8, "topk": 2}


class TestExperts:
    def test_a_dense_model_has_no_expert_degrees(self) -> None:
        layout = only(parallel={"ep": 8, "etp": 2})
        assert (layout.ep, layout.etp) == (1, 1)

    def test_open_degrees_share_the_experts_and_the_ranks(self) -> None:
        found = layouts(model=EXPERTS)
        assert {(layout.ep, layout.etp) for layout in found} == {
            (1, 1),
            (1, 2),
            (2, 1),
            (2, 2),
            (4, 1),
        }

    def test_stated_degrees(self) -> None:
        layout = only(model=EXPERTS, parallel={"ep": 2, "etp": 2})
        assert (layout.ep, layout.etp) == (2, 2)


class TestRecompute:
    def test_open_policies_and_the_stacks(self) -> None:
        open_ones = [entry.policy for entry in policies(parallel={"recompute": None})]
        assert open_ones == ["none", "selective", "selective", "selective", "full"]
        known = policies({"recompute": "none"}, parallel={"recompute": None})
        assert [entry.policy for entry in known] == ["none"]

    @pytest.mark.parametrize(
        ("defaults", "stated", "expected"),
        [
            ({"recompute": "none"}, None, ["selective", "selective", "selective", "full"]),
            ({"recompute": ["none", "selective"]}, None, ["selective", "selective", "full"]),
            ({"recompute": "none"}, "none", []),
            ({}, None, []),
        ],
    )
    def test_spares_recompute_more_than_the_stack_does_by_itself(
        self, defaults: dict[str, Any], stated: str | None, expected: list[str]
    ) -> None:
        row = rows.row(parallel={"recompute": stated})
        case = CaseMaker(defaults=lambda row: defaults).case_of(row)
        assert isinstance(case, Case)
        assert [layout.recompute[0].policy for layout in spares_of(case)] == expected

    def test_modules_by_other_names(self) -> None:
        modules = ["layernorm", "act", "shared_expert", "norm", "tea"]
        (entry,) = policies(parallel={"recompute": "selective", "recompute_modules": modules})
        assert entry.modules == ("norm", "mlp_act", "shared_experts")

    @pytest.mark.parametrize(
        "changes",
        [{"recompute_modules": ["moe_act"]}, {"other": "DeepEP; moe_act recompute, CUDA graphs"}],
    )
    def test_modules_alone_mean_selective(self, changes: dict[str, Any]) -> None:
        assert policies(parallel={"recompute": None} | changes) == [
            Recompute(policy="selective", modules=("moe_act",))
        ]

    def test_every_second_layer(self) -> None:
        printed = {"recompute": "selective", "as_printed": {"recompute": "selective layer"}}
        (entry,) = policies(model={"layers": 6}, parallel=printed)
        assert entry == Recompute(policy="full", num_layers=2)

    def test_a_remark_without_modules_says_nothing(self) -> None:
        remark = {"recompute": None, "other": "No recompute."}
        assert len(policies(parallel=remark)) == 5


class TestOthers:
    def test_sequence_parallel_is_open_where_tensor_parallel_is_used(self) -> None:
        changes = {"sequence_parallel": None}
        assert open_values("sequence_parallel", parallel=changes) == [False, True]
        one = {"tp": 1, "dp": 4, "micro_batch": 1}
        assert open_values("sequence_parallel", parallel=changes | one) == [False]

    @pytest.mark.parametrize(
        ("remark", "offload"),
        [
            ("activation offloading, CUDA graphs", ("activations",)),
            ("cpu offload True", ("optimizer", "parameters")),
            ("cpu offload False", ()),
        ],
    )
    def test_offload_is_read_from_remarks(self, remark: str, offload: tuple[str, ...]) -> None:
        assert only(parallel={"other": remark}).offload == offload

    def test_further_fields_come_from_the_stack(self) -> None:
        layout = only({"loss_chunks": 4, "compile": True, "cp_kind": ["all_to_all", "ring"]})
        assert (layout.loss_chunks, layout.compile, layout.cp_kind) == (4, True, "all_to_all")

    def test_the_order_is_always_the_same(self) -> None:
        changes = {"recompute": None, "zero": None, "sequence_parallel": None}
        assert layouts(parallel=changes) == layouts(parallel=changes)
        assert len(layouts(parallel=changes)) == 20
