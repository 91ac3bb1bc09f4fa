"""Every number of an explanation, worked out again from the plan by other code."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.api import estimate, plan
from shardwright.planner.explain import explain
from shardwright.specs import Candidate, Plan, Recompute, TrainingSpec
from shardwright.specs.sources import resolve_model
from shardwright.specs.units import format_bytes
from tests.planner.conftest import measured, tiny_model

PROFILE = resolve_cluster("dgx-h100:2")


@pytest.fixture(scope="module")
def made() -> Plan:
    training = TrainingSpec(global_batch=64, seq_len=4096)
    answer = plan(
        model=resolve_model("llama-3-8b"), profile=PROFILE, training=training,
        fix="pp=4,vpp=2,schedule=interleaved-1f1b,tp=2",
    )  # fmt: skip
    assert answer.plan is not None
    return answer.plan


def test_shares_are_those_of_the_breakdown(made: Plan) -> None:
    found = explain(made)
    values = made.prediction.breakdown.model_dump()
    seconds = {what: taken for what, taken, _ in found.time_shares}
    assert seconds["compute"] == values["compute_forward"] + values["compute_backward"]
    assert seconds["bubble"] == values["bubble"]
    assert sum(seconds.values()) == pytest.approx(made.prediction.step_time_s, rel=1e-9)
    for what, taken, share in found.time_shares:
        assert share == pytest.approx(taken / made.prediction.step_time_s, rel=1e-9), what
    assert [taken for _, taken, _ in found.time_shares] == sorted(seconds.values(), reverse=True)


def test_memory_of_every_rank_is_that_of_the_prediction(made: Plan) -> None:
    found = explain(made)
    assert len(found.stages) == 4
    for stage, peak in zip(found.stages, made.prediction.peak_memory_bytes, strict=True):
        assert stage.peak_bytes == peak == sum(stage.memory.model_dump().values())
        assert stage.fills == pytest.approx(peak / made.prediction.memory_capacity_bytes)
        assert stage.free_bytes == made.prediction.memory_capacity_bytes - peak
    assert "pipeline rank 0: layers 0-" in "\n".join(found.lines())


def _named(choices: str) -> Plan:
    training = TrainingSpec(global_batch=64, seq_len=4096)
    layout = f"tp=2,micro_batch=1,recompute=full,{choices}"
    answer = estimate(
        model=resolve_model("llama-3-8b"), profile=PROFILE, training=training, layout=layout
    )
    assert answer.plan is not None
    return answer.plan


@pytest.mark.parametrize(
    ("choices", "transfers"),
    [
        ("zero=1,offload=optimizer", None),
        ("zero=1,offload=activations+optimizer", "other"),
        ("zero=3,pp=1,offload=activations", "dp traffic"),
    ],
)
def test_what_offload_takes_of_host_memory_is_said(choices: str, transfers: str | None) -> None:
    """State of 12 bytes a parameter of a rank's shard, and all activations that it saves."""
    done = _named(choices)
    plain = _named(f"{choices.split('offload')[0]}offload=none")
    state = plain.prediction.memory[0].optimizer_state * ("optimizer" in choices)
    saved = plain.prediction.memory[0].activations * ("activations" in choices)
    limit = explain(done, PROFILE).limit
    needed = f"up to {format_bytes(8 * (state + saved))} of a node's host memory"
    assert f"{needed}: how much there is, is not known" in limit
    assert (f"its transfers count as {transfers}" in limit) == (transfers is not None)
    assert "host memory" not in explain(plain, PROFILE).limit
    assert "host memory" not in explain(done).limit
    (group,) = PROFILE.devices.groups
    groups = (group.model_copy(update={"host_memory_bytes": 2**40}),)
    devices = PROFILE.devices.model_copy(update={"groups": groups})
    known = PROFILE.model_copy(update={"devices": devices})
    assert f"{needed}: it has 1.0 TiB" in explain(done, known).limit


def test_every_rank_holds_the_layers_of_its_stages(made: Plan) -> None:
    for stage in explain(made).stages:
        own = [one for one in made.layout.stages if one.rank == stage.rank]
        assert len(own) == 2
        assert stage.layers == " ".join(f"{one.layers[0]}-{one.layers[1] - 1}" for one in own)
    assert explain(made).stages[0].holds == ("embedding",)
    assert set(explain(made).stages[-1].holds) == {"final_norm", "head"}


def test_every_rank_spends_the_whole_step(made: Plan) -> None:
    found = explain(made, PROFILE)
    busiest = min(found.stages, key=lambda one: one.breakdown.bubble if one.breakdown else 0.0)
    for stage in found.stages:
        assert stage.breakdown is not None
        values = stage.breakdown.model_dump()
        assert sum(values.values()) == pytest.approx(made.prediction.step_time_s, rel=1e-9)
        assert stage.busy_fraction == pytest.approx(1 - values["bubble"] / sum(values.values()))
    assert busiest.breakdown is not None
    assert busiest.breakdown.total_s == pytest.approx(made.prediction.breakdown.total_s)
    assert any(stage.breakdown == made.prediction.breakdown for stage in found.stages)
    assert explain(made).stages[0].breakdown is None


def test_ranks_of_our_own_runtime_spend_the_whole_step() -> None:
    profile = measured(resolve_cluster("dgx-h100", gpus=4))
    training = TrainingSpec(global_batch=8, seq_len=64)
    answer = plan(model=tiny_model(6, hidden=64), profile=profile, training=training, fix="pp=4")
    assert answer.plan is not None
    for stage in explain(answer.plan, profile).stages:
        assert stage.breakdown is not None
        assert stage.breakdown.total_s == pytest.approx(answer.plan.prediction.step_time_s)


def test_runners_up_are_slower_by_what_an_estimate_of_them_says(made: Plan) -> None:
    found = explain(made)
    assert len(found.runners_up) == len(made.alternatives) > 0
    for text, other in zip(found.runners_up, made.alternatives, strict=True):
        words, _, difference = text.partition(": ")
        again = estimate(
            model=made.model, profile=PROFILE, training=made.training, software=made.software,
            layout=words,
        )  # fmt: skip
        assert again.plan is not None
        assert again.plan.layout == other.layout
        more = again.plan.prediction.step_time_s / made.prediction.step_time_s - 1
        assert difference.startswith(f"{more:.2%} slower") or abs(more) < 5e-5


def test_the_tie_set_says_how_close_it_is_and_in_what_it_differs(made: Plan) -> None:
    assert made.ties
    found = explain(made, PROFILE).ties
    assert found is not None
    assert found.count == len(made.ties)
    steps_s = [one.prediction.step_time_s for one in made.ties]
    assert found.slowest_ratio == max(steps_s) / made.prediction.step_time_s
    assert found.tie_ratio is not None
    assert found.slowest_ratio <= found.tie_ratio
    layouts = [made.layout, *(one.layout for one in made.ties)]
    for name in ("dp", "micro_batch", "zero"):
        values = {str(getattr(layout, name)) for layout in layouts}
        assert set(found.varied.get(name, values)) == values
        assert (name in found.varied) == (len(values) > 1)
    assert f"within {found.slowest_ratio - 1:.2%}" in found.in_words()
    assert explain(made.model_copy(update={"ties": ()})).ties is None


def test_the_limit_names_the_largest_share_and_the_fullest_rank(made: Plan) -> None:
    words = explain(made).limit
    peaks = made.prediction.peak_memory_bytes
    assert f"pipeline rank {peaks.index(max(peaks))} is fullest" in words
    assert explain(made).time_shares[0][0] in words


def test_ties_that_differ_in_rare_choices_say_so(made: Plan) -> None:
    changes: list[dict[str, object]] = [
        {"loss_chunks": 4},
        {"zero": 0, "zero_shard_degree": 1},
        {"recompute": (Recompute(policy="full", num_layers=1), *made.layout.recompute[1:])},
        {"rank_order": "tp-cp-pp-dp"},
    ]
    ties = tuple(
        Candidate(layout=made.layout.model_copy(update=change), prediction=made.prediction)
        for change in changes
    )
    found = explain(made.model_copy(update={"ties": ties})).ties
    assert found is not None
    assert found.varied["loss_chunks"] == ("1", "4")
    assert found.varied["zero_shard_degree"] == ("2", "1")
    assert len(found.varied["rank_order"]) == 2
    assert found.varied["recompute"] == ("2 policies",)
