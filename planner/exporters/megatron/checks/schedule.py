"""Rules 50 to 55: the schedule of training, data and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.exporters.megatron.checks.case import Broken, Case, Rule

_ITERATIONS = ("--train-iters", "--lr-decay-iters", "--lr-warmup-iters")
_SAMPLES = ("--train-samples", "--lr-decay-samples", "--lr-warmup-samples")
_SPLITS = ("--train-data-path", "--valid-data-path", "--test-data-path")
_SIZES = ("--num-layers", "--hidden-size", "--num-attention-heads", "--vocab-size",
          "--make-vocab-size-divisible-by")  # fmt: skip
_GRID = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size")


def learning_rate(case: Case) -> Iterator[Broken]:
    arguments = case.arguments
    by_steps, by_samples = arguments.present(_ITERATIONS), arguments.present(_SAMPLES)
    if by_steps and by_samples:
        yield f"{' and '.join(by_steps)} exclude {' and '.join(by_samples)}", None
    if case.has("--train-iters") and case.has("--rampup-batch-size"):
        yield "training by steps excludes --rampup-batch-size", None
    if case.has("--lr-warmup-fraction") and arguments.present(
        ("--lr-warmup-iters", "--lr-warmup-samples")
    ):
        yield "--lr-warmup-fraction excludes a count of warm-up steps", None
    if arguments.fraction("--min-lr", 0.0) > arguments.fraction("--lr", float("inf")):
        yield "--min-lr exceeds --lr", None
    save, keep = arguments.number("--save-interval"), arguments.number("--save-retain-interval")
    if case.has("--save") and not save:
        yield "--save needs --save-interval", None
    if save and keep and keep % save:
        yield f"--save-retain-interval {keep} is not a multiple of {save}", None
    memory, log = arguments.number("--log-memory-interval"), arguments.number("--log-interval", 100)
    if memory and log and memory % log:
        yield f"--log-memory-interval {memory} is not a multiple of --log-interval {log}", None


def data(case: Case) -> Iterator[Broken]:
    sources = [
        case.has("--mock-data"), case.has("--data-path"), bool(case.arguments.present(_SPLITS)),
    ]  # fmt: skip
    if sum(sources) > 1:
        yield "mock data, --data-path and paths by split exclude each other", None
    if case.has("--fim-data"):
        needed = ("--fim-rate", "--fim-spm-rate", "--fim-prefix-token", "--fim-middle-token",
                  "--fim-suffix-token", "--fim-pad-token", "--fim-eod-token")  # fmt: skip
        missing = [flag for flag in needed if not case.has(flag)]
        if missing:
            yield f"--fim-data needs {' and '.join(missing)}", None


def saving(case: Case) -> Iterator[Broken]:
    arguments = case.arguments
    is_local = arguments.text("--non-persistent-ckpt-type") == "local"
    if case.has("--async-save") and not case.has("--use-persistent-ckpt-worker"):
        yield "--async-save without --use-persistent-ckpt-worker is switched off", None
    if is_local and not case.has("--non-persistent-local-ckpt-dir"):
        yield "local checkpoints need --non-persistent-local-ckpt-dir", None
    if case.has("--replication") and not (is_local and case.has("--replication-jump")):
        yield "--replication needs local checkpoints and --replication-jump", None


def loading(case: Case) -> Iterator[Broken]:
    """Sizes of a checkpoint must be those of the arguments; per-rank files also the grid."""
    if case.saved is None or not case.has("--load"):
        return
    flags = [*_SIZES, *(_GRID if case.saved.text("--ckpt-format") == "torch" else ())]
    for flag in flags:
        now, before = case.arguments.text(flag), case.saved.text(flag)
        if now != before:
            yield f"{flag} is {now}, but the checkpoint has {before}", None


def resharding(case: Case) -> Iterator[Broken]:
    if case.saved is None or not case.has("--load") or case.has("--no-load-optim"):
        return
    changed = [f for f in _GRID if case.arguments.text(f, "1") != case.saved.text(f, "1")]
    is_sharded = case.saved.has("--use-distributed-optimizer")
    if changed and is_sharded and not case.saved.has("--dist-ckpt-optim-fully-reshardable"):
        yield (
            f"{' and '.join(changed)} changed, but the optimizer's state was saved without"
            " --dist-ckpt-optim-fully-reshardable", None,
        )  # fmt: skip


def parallel_loading(case: Case) -> Iterator[Broken]:
    old = case.saved is not None and case.saved.text("--distrib-optim-sharding-type")
    if case.has("--ckpt-fully-parallel-load") and old == "dp_zero_gather_scatter":
        yield "--ckpt-fully-parallel-load does not read dp_zero_gather_scatter", None


RULES: dict[int, Rule] = {
    50: learning_rate, 51: data, 52: saving, 53: loading, 54: resharding, 55: parallel_loading,
}  # fmt: skip
