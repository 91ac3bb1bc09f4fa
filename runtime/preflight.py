"""Refusals: everything that is checked before a run touches anything."""

from __future__ import annotations

from pathlib import Path

from shardwright.cost_models.blocks.support import unsupported
from shardwright.cost_models.pipeline.messages import schedule_problems
from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.hardware_profiles.device import current_device_type, device_count
from shardwright.hardware_profiles.discover import local_cluster
from shardwright.runtime.checkpoint import CheckpointStore, RunFacts
from shardwright.runtime.data.samples import SampleSource, open_samples
from shardwright.runtime.job import Job
from shardwright.runtime.models.huggingface import HuggingFaceFolder
from shardwright.runtime.rendezvous import Rendezvous
from shardwright.specs import ClusterSpec, InputError, Plan, Precision, ScheduleName
from shardwright.specs.plan import check_folder

_PRECISIONS = (Precision.FP64, Precision.FP32, Precision.BF16, Precision.BF16_PURE)


def look_around(world: int, rendezvous: Rendezvous | None) -> ClusterSpec | InputError:
    """This machine as a cluster of the ranks that are to run on it, or why it cannot be one.

    To be called before a rank is pinned to a core: afterwards one core is all it sees. A refusal is
    returned, so that ranks can refuse together.
    """
    ranks_here = world if rendezvous is None else rendezvous.ranks_on_node
    try:
        device_type = current_device_type()
        devices = device_count(device_type)
        if device_type != "cpu" and ranks_here > devices:
            raise InputError(
                f"{ranks_here} ranks are to run here, but this machine shows {devices}"
                f" {device_type} devices",
                fix="start the ranks on all nodes with torchrun or srun, or plan again for this"
                " machine with --cluster local",
            )
        return local_cluster(ranks_here)
    except InputError as error:
        return error


def check_job(job: Job, rendezvous: Rendezvous | None, here: ClusterSpec | InputError) -> None:
    """Refuse options, plans and places that cannot run; ``here`` as `look_around` saw it.

    Raises:
        InputError: contradicting options; a plan that breaks its own rules or asks for what the
            runtime does not do; another world size; other hardware; a used or missing checkpoint;
            no weights to start from.
    """
    job.check()
    check_plan(job.plan)
    if rendezvous is not None:
        check_world(job.plan, rendezvous)
    check_hardware(job.plan, 0 if rendezvous is None else rendezvous.rank, here)
    check_checkpoints(job)
    if job.init_from is not None:
        HuggingFaceFolder(Path(job.init_from))


def check_plan(plan: Plan) -> None:
    """Refuse a plan that was edited into an invalid one, or that needs what is not built."""
    _check_hashes(plan)
    violations = plan.layout.violations(plan.model, plan.cluster, plan.training)
    if violations:
        raise InputError(
            f"the plan's layout is not valid: {'; '.join(map(str, violations))}",
            fix="make a new plan with shardwright plan",
        )
    missing = list(dict.fromkeys((*_not_executable(plan), *unsupported(plan.model, plan.layout))))
    if missing:
        raise InputError(
            f"this plan cannot be run here: {', '.join(missing)}",
            why="the runtime does not execute that",
            fix="plan again with --fix, such as --fix cp=1, or with --stack shardwright",
        )
    _check_schedule(plan)


def _check_hashes(plan: Plan) -> None:
    """Refuse another model or cluster than the plan was made for: its prediction would be void."""
    altered = [
        what
        for what, given, planned in (
            ("model", plan.model.content_hash(), plan.provenance.model_hash),
            ("cluster", plan.cluster.content_hash(), plan.provenance.cluster_hash),
        )
        if given != planned
    ]
    if altered:
        raise InputError(
            f"the {' and the '.join(altered)} in the plan file is not what was planned",
            why="the file was altered",
            fix="make a new plan with shardwright plan",
        )


def _check_schedule(plan: Plan) -> None:
    """Refuse other actions than the layout's schedule has: ranks would wait for one another.

    A custom schedule may have any that make a whole step.
    """
    if plan.layout.schedule is ScheduleName.CUSTOM:
        _check_custom_schedule(plan)
        return
    wanted = None if plan.layout.schedule is None else schedule_of(plan.layout)
    if plan.schedule != wanted:
        raise InputError(
            f"the plan's schedule is not the {plan.layout.schedule} that its layout names",
            why="the file was altered",
            fix="make a new plan with shardwright plan",
        )


def _check_custom_schedule(plan: Plan) -> None:
    ranks = tuple(stage.rank for stage in plan.layout.stages)
    problems = ["it has no actions"]
    if plan.schedule is not None:
        problems = schedule_problems(plan.schedule, ranks, plan.layout.micro_batches)
    if problems:
        raise InputError(
            f"the plan's custom schedule cannot be run: {'; '.join(problems)}",
            fix="write each micro-batch's forward and backward on each stage once, with the sends"
            " and receives between stages on different ranks",
        )


def _not_executable(plan: Plan) -> list[str]:
    layout = plan.layout
    return [
        words
        for words, wanted in (
            (f"cp = {layout.cp}", layout.cp > 1),
            (f"ep = {layout.ep}", layout.ep > 1),
            (f"precision {plan.training.precision}", plan.training.precision not in _PRECISIONS),
            (f"trainable {plan.training.trainable}", plan.training.trainable != "full"),
            (f"optimizer {plan.training.optimizer.name}", plan.training.optimizer.name != "adamw"),
            (f"offload {' '.join(layout.offload)}", bool(layout.offload)),
            (f"etp = {layout.etp}", layout.etp > 1),
            ("compile", layout.compile),
            ("reshard_after_forward off", not layout.reshard_after_forward),
            ("recompute of some layers", any(r.num_layers is not None for r in layout.recompute)),
            (f"loss_chunks = {layout.loss_chunks}", layout.loss_chunks > 1),
            ("stages with different grids", layout.stage_meshes is not None),
            (f"rank order {layout.rank_order}", layout.rank_order != "tp-cp-dp-pp"),
            ("unequal micro-batch counts", not isinstance(layout.num_microbatches, int)),
            ("selective recompute", any(r.policy == "selective" for r in layout.recompute)),
        )
        if wanted
    ]


def check_world(plan: Plan, rendezvous: Rendezvous) -> None:
    """Refuse a launch of another size than the plan's."""
    if plan.layout.world != rendezvous.world_size:
        raise InputError(
            f"the plan is for {plan.layout.world} ranks, but this {rendezvous.launcher} launch has"
            f" {rendezvous.world_size}",
            fix=f"start {plan.layout.world} ranks, or plan again with --gpus"
            f" {rendezvous.world_size}",
        )


def check_hardware(plan: Plan, rank: int, here: ClusterSpec | InputError) -> None:
    """Refuse a plan made for another kind of device than this machine's, or for more of them."""
    if isinstance(here, InputError):
        raise here
    planned = plan.cluster.group_of(rank).accelerator.name
    found = here.accelerator.name
    if planned != found:
        raise InputError(
            f"the plan is for {plan.cluster.in_words()}, but this machine is {here.in_words()}",
            why=f"{planned} is not {found}, so its predictions do not hold here",
            fix="plan again for this machine: shardwright profile -o profile.json, then"
            " shardwright plan ... --cluster profile.json",
        )


def check_checkpoints(job: Job) -> None:
    """Refuse to resume from nothing, and to write over another run's checkpoints."""
    if job.save_path is None:
        return
    check_folder(job.save_path)
    store = CheckpointStore(job.save_path)
    if not job.resume:
        store.refuse_if_used()
        return
    manifest = store.read_manifest()
    if manifest.step >= job.steps:
        raise InputError(
            f"the checkpoint in {job.save_dir} has done {manifest.step} of {job.steps} steps",
            fix=f"give --steps greater than {manifest.step}",
        )


def open_data(job: Job, *, progress: bool) -> SampleSource:
    """The run's samples; built and cached where they are not yet.

    Raises:
        InputError: unusable data, or a checkpoint that belongs to other data or another model.
    """
    plan = job.plan
    samples = open_samples(
        job.data,
        vocab_size=plan.model.embedding.vocab_size,
        seq_len=plan.training.seq_len,
        progress=progress,
    )
    if job.resume and job.save_path is not None:
        manifest = CheckpointStore(job.save_path).read_manifest()
        facts = RunFacts.of(plan, samples.fingerprint)
        facts.check_same(manifest.facts, job.save_path)
    return samples
