"""Everything that is refused before a run touches anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shardwright.cost_models.blocks.support import OWN_LACKS
from shardwright.hardware_profiles.discover import local_cluster
from shardwright.runtime.checkpoint import CheckpointStore, RunFacts
from shardwright.runtime.job import Job
from shardwright.runtime.pieces import Piece
from shardwright.runtime.preflight import check_job, check_plan, look_around, open_data
from shardwright.runtime.rendezvous import Rendezvous
from shardwright.specs import InputError, Plan, Recompute, Schedule, ScheduleName, StageMesh
from tests.runtime.plans import cluster_of, plan_of, small_model, training_of


def _local_plan(**choices: Any) -> Plan:
    tp, pp, dp = (choices.get(axis, 1) for axis in ("tp", "pp", "dp"))
    return plan_of(cluster=local_cluster(tp * pp * dp), **choices)


def _job(plan: Plan | None = None, **options: Any) -> Job:
    return Job(**{"plan": plan or _local_plan(), "data": "mock", "steps": 5, **options})


def _check(job: Job, rendezvous: Rendezvous | None = None) -> None:
    check_job(job, rendezvous, look_around(job.plan.layout.world, rendezvous))


def _save_checkpoint(folder: Path, *, step: int = 3, fingerprint: str = "mock:307") -> None:
    plan = _local_plan()
    weights = torch.zeros(plan.model.num_parameters)
    piece = Piece("weight/all", tuple(weights.shape), (0,), weights)
    CheckpointStore(folder).save(step, [piece], RunFacts.of(plan, fingerprint), plan)


def test_good_job_is_accepted(tmp_path: Path) -> None:
    _check(_job(save_dir=str(tmp_path / "run")))
    assert list(tmp_path.iterdir()) == []


def test_plan_for_other_hardware_is_refused() -> None:
    plan = plan_of(cluster=cluster_of(2), tp=2)
    with pytest.raises(
        InputError, match=r"the plan is for .*TEST-DEVICE.* but this machine is"
    ) as e:
        _check(_job(plan))
    assert "plan again for this machine" in str(e.value)


def test_plan_for_another_world_size_is_refused() -> None:
    rendezvous = Rendezvous("torchrun", 0, 4, 0, 4, "127.0.0.1", 29500)
    with pytest.raises(
        InputError, match="plan is for 2 ranks, but this torchrun launch has 4"
    ) as e:
        _check(_job(_local_plan(dp=2)), rendezvous)
    assert "start 2 ranks, or plan again with --gpus 4" in str(e.value)


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        pytest.param({"cp": 2}, "cp = 2", id="cp"),
        pytest.param({"recompute": Recompute(policy="selective")}, "selective recompute", id="re"),
        pytest.param({"loss_chunks": 2}, "loss_chunks = 2", id="loss-chunks"),
        pytest.param({"compile": True}, "compile", id="compile"),
        pytest.param({"reshard_after_forward": False}, "reshard_after_forward", id="reshard"),
        pytest.param(
            {"recompute": Recompute(policy="full", num_layers=1)}, "some layers", id="partial"
        ),
        pytest.param({"offload": ("optimizer",)}, "offload optimizer", id="offload"),
    ],
)
def test_plan_that_needs_what_is_not_built_is_refused(choices: dict[str, Any], named: str) -> None:
    world = choices.get("cp", 1) * choices.get("pp", 1)
    plan = plan_of(cluster=local_cluster(world), tp=1, **{"dp": 1, **choices})
    with pytest.raises(InputError, match=f"cannot be run here: .*{named}"):
        _check(_job(plan))


@pytest.mark.parametrize("choices", [
    {"vpp": 2}, {"schedule": "zb-h1"}, {"schedule": "zb-h2"}, {"vpp": 2, "schedule": "zb-v"},
    {"vpp": 2, "schedule": "dualpipev"},
])  # fmt: skip
def test_every_schedule_is_accepted(choices: dict[str, Any]) -> None:
    _check(_job(_local_plan(pp=2, **choices)))


def _with_rows(rows: list[str], schedule: str = "custom") -> Plan:
    plan = _local_plan(pp=2, micro_batch=8)
    written = Schedule.from_value(
        {"name": "custom", "num_stages": 2, "num_micro_batches": 1, "ranks": rows}
    )
    layout = plan.layout.model_copy(update={"schedule": ScheduleName(schedule)})
    return plan.model_copy(update={"layout": layout, "schedule": written})


def test_a_custom_schedule_is_accepted_if_it_is_a_whole_step() -> None:
    rows = ["0F0 0SEND_F0 0RECV_B0 0I0 0W0", "1RECV_F0 1F0 1I0 1SEND_B0 1W0"]
    _check(_job(_with_rows(rows)))
    with pytest.raises(InputError, match=r"custom schedule cannot be run: .*0W0 comes before"):
        _check(_job(_with_rows(["0F0 0SEND_F0 0RECV_B0 0W0 0I0", rows[1]])))
    with pytest.raises(InputError, match="schedule is not the 1f1b that its layout names"):
        _check(_job(_with_rows(rows, "1f1b")))


def test_plan_over_unequal_grids_is_refused() -> None:
    plan = plan_of(cluster=local_cluster(2), tp=1, dp=2)
    meshes = (StageMesh(ranks=(0, 1), tp=1, dp=2),)
    layout = plan.layout.model_copy(update={"stage_meshes": meshes})
    with pytest.raises(InputError, match=r"cannot be run here: .*stages with different grids"):
        _check(_job(plan.model_copy(update={"layout": layout})))


def test_plan_that_was_broken_by_hand_is_refused() -> None:
    plan = _local_plan(dp=2)
    layout = plan.layout.model_copy(update={"micro_batch": 3})
    with pytest.raises(InputError, match="is not global_batch = 8"):
        _check(_job(plan.model_copy(update={"layout": layout})))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        pytest.param({"resume": True}, "--resume needs a folder", id="resume-without-save"),
        pytest.param({"save_every": 2}, "--save-every needs a folder", id="every-without-save"),
        pytest.param(
            {"resume": True, "save_dir": "x", "init_from": "y"}, "leave out one", id="resume-init"
        ),
        pytest.param(
            {"resume": True, "save_dir": "absent"}, "there is no checkpoint", id="nothing"
        ),
    ],
)
def test_contradicting_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        _check(_job(**options))


def test_another_runs_checkpoints_are_never_overwritten(tmp_path: Path) -> None:
    _save_checkpoint(tmp_path)
    with pytest.raises(InputError, match="holds a run's checkpoints up to step 3"):
        _check(_job(save_dir=str(tmp_path)))
    _check(_job(save_dir=str(tmp_path), resume=True))


def test_finished_run_has_nothing_to_resume(tmp_path: Path) -> None:
    _save_checkpoint(tmp_path, step=5)
    with pytest.raises(InputError, match="has done 5 of 5 steps"):
        _check(_job(save_dir=str(tmp_path), resume=True))


def test_resuming_on_other_data_or_another_seed_is_refused(tmp_path: Path) -> None:
    _save_checkpoint(tmp_path, fingerprint="other")
    training = training_of(seed=4)
    plan = plan_of(training=training, cluster=local_cluster(1))
    job = _job(plan, save_dir=str(tmp_path), resume=True)
    with pytest.raises(InputError, match="seed is 4, there 0; data_fingerprint is mock:307, there"):
        open_data(job, progress=False)


def test_vocabulary_that_no_tokenizer_fits_is_refused(tmp_path: Path) -> None:
    plan = plan_of(small_model(vocab_size=100), cluster=local_cluster(1))
    (tmp_path / "text.txt").write_text("some text", encoding="utf-8")
    with pytest.raises(InputError, match="vocabulary of 100 is too small"):
        open_data(_job(plan, data=str(tmp_path)), progress=False)


LACKING: dict[str, dict[str, Any]] = {
    "cp": {"cp": 2},
    "ep": {"ep": 2},
    "offload": {"offload": ("optimizer",)},
    "selective": {"recompute": Recompute(policy="selective")},
    "partial_recompute": {"recompute": Recompute(policy="full", num_layers=1)},
    "loss_chunks": {"loss_chunks": 2},
    "compile": {"compile": True},
    "rank_order=tp-cp-pp-dp": {"rank_order": "tp-cp-pp-dp"},
    "reshard_after_forward=false": {"dp": 2, "zero": 3, "reshard_after_forward": False},
}


@pytest.mark.parametrize("name", OWN_LACKS)
def test_what_our_stack_says_that_it_lacks_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        check_plan(plan_of(**LACKING[name]))


def test_all_that_is_lacking_is_named_at_once_and_once() -> None:
    plan = plan_of(loss_chunks=2, compile=True, recompute=Recompute(policy="selective"))
    with pytest.raises(InputError) as caught:
        check_plan(plan)
    for words in ("loss_chunks = 2", "compile", "selective recompute"):
        assert str(caught.value).count(words) == 1
