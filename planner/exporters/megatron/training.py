"""Batch, precision, optimizer and data as Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.exporters.exported import FIRST_STEPS, Findings, Job
from shardwright.planner.exporters.megatron.arguments import Option
from shardwright.planner.exporters.megatron.versions import MegatronVersion
from shardwright.specs import Precision, TrainingSpec

_RECIPES: dict[Precision, tuple[str, str]] = {
    Precision.FP8_DELAYED: ("hybrid", "delayed"),
    Precision.FP8_TENSOR: ("hybrid", "tensorwise"),
    Precision.FP8_BLOCK: ("e4m3", "blockwise"),
    Precision.MXFP8: ("e4m3", "mxfp8"),
}
_OPTIMIZERS = {"adamw": "adam", "sgd": "sgd", "muon": "muon"}
VOCABULARY_MULTIPLE = 128
"""``--make-vocab-size-divisible-by``, times tp."""


def batch_options(job: Job) -> Iterator[Option]:
    yield ("--seq-length", str(job.training.seq_len))
    yield ("--micro-batch-size", str(job.layout.micro_batch))
    yield ("--global-batch-size", str(job.training.global_batch))
    yield ("--train-iters", str(job.num_steps))


def precision_options(job: Job, version: MegatronVersion, findings: Findings) -> Iterator[Option]:
    """Dtypes of weights, products, gradients and moments."""
    training = job.training
    precision, dtypes = training.precision, training.dtypes
    if dtypes.parameter == "bf16" and dtypes.master == "fp32":
        yield ("--bf16",)
    elif precision is Precision.FP16:
        yield ("--fp16",)
    elif precision is not Precision.FP32:
        findings.refuse(
            "precision", f"precision {precision} has no option in Megatron-LM", "precision = bf16"
        )
    yield from _gradients(training, version, findings)
    if precision in _RECIPES:
        number, recipe = _RECIPES[precision]
        if recipe not in version.fp8_recipes:
            findings.refuse(
                "precision", f"{version.rules.version} has no fp8 recipe {recipe}",
                "precision = fp8-delayed",
            )  # fmt: skip
        yield ("--fp8-format", number)
        if version.fp8_recipes != {"delayed"}:
            yield ("--fp8-recipe", recipe)
    if precision is Precision.NVFP4:
        if not version.has_fp4:
            findings.refuse("precision", f"{version.rules.version} has no fp4", "precision = bf16")
        yield ("--fp4-format", "e2m1")
        yield ("--fp4-recipe", "nvfp4")
        findings.note("precision: fp4 needs Transformer Engine 2.7 or later")


def _gradients(
    training: TrainingSpec, version: MegatronVersion, findings: Findings
) -> Iterator[Option]:
    """fp32 sums under bf16 are the default; under fp16 they must be asked for."""
    dtypes = training.dtypes
    gradient = dtypes.gradient
    if gradient == dtypes.parameter == "bf16" and version.has_bf16_gradients:
        yield ("--grad-reduce-in-bf16",)
    elif gradient == "fp32" and dtypes.parameter == "fp16":
        yield ("--accumulate-allreduce-grads-in-fp32",)
    elif (gradient != "fp32" and gradient != dtypes.parameter) or gradient == "bf16":
        findings.refuse(
            "gradient_dtype", f"{version.rules.version} does not sum gradients in {gradient} under"
            f" {dtypes.parameter}", "gradient_dtype = fp32",
        )  # fmt: skip


def optimizer_options(job: Job, version: MegatronVersion, findings: Findings) -> Iterator[Option]:
    """Name, moments, learning rate and clipping."""
    one = job.training.optimizer
    name = _OPTIMIZERS.get(one.name)
    if name is None or (one.name == "muon" and not version.has_muon):
        findings.refuse(
            "optimizer", f"{version.rules.version} has no optimizer {one.name}", "optimizer = adamw"
        )
    yield ("--optimizer", name or "adam")
    if one.name == "adamw":
        yield ("--adam-beta1", f"{one.beta1:g}")
        yield ("--adam-beta2", f"{one.beta2:g}")
        yield ("--adam-eps", f"{one.epsilon:g}")
    yield from _moments(job, version, findings)
    yield ("--weight-decay", f"{one.weight_decay:g}")
    yield ("--clip-grad", f"{one.clip_norm or 0:g}")
    yield ("--lr", f"{one.learning_rate:g}")
    yield ("--min-lr", f"{min(one.min_learning_rate, one.learning_rate):g}")
    yield ("--lr-decay-style", "cosine")
    decay = one.decay_steps or job.num_steps
    warmup = one.warmup_steps
    if warmup >= decay:
        warmup = decay - 1
        findings.note(
            f"warm-up: {warmup} steps instead of {one.warmup_steps}, for the learning rate decays"
            f" within {decay}"
        )
    yield ("--lr-decay-iters", str(decay))
    yield ("--lr-warmup-iters", str(warmup))


def _moments(job: Job, version: MegatronVersion, findings: Findings) -> Iterator[Option]:
    """Moments in fewer bits, or on the host, are those of the precision-aware optimizer."""
    moment = job.training.dtypes.moment
    is_offloaded = "optimizer" in job.layout.offload
    if moment == "fp32" and not is_offloaded:
        return
    if moment not in ("fp32", "bf16", "fp16", "fp8") or not version.has_precision_aware_optimizer:
        findings.refuse(
            "moment_dtype", f"{version.rules.version} keeps no moments in {moment}",
            "moment_dtype = fp32",
        )  # fmt: skip
    elif job.training.optimizer.name != "adamw" or job.layout.zero == 0:
        findings.refuse(
            "moment_dtype", "the precision-aware optimizer is Adam, and sharded", "zero = 1"
        )
    yield ("--use-precision-aware-optimizer",)
    if moment != "fp32":
        yield ("--exp-avg-dtype", moment)
        yield ("--exp-avg-sq-dtype", moment)


def software_options(job: Job, version: MegatronVersion) -> Iterator[Option]:
    """Kernels and dropout as the plan was priced with them."""
    software = job.software
    if version.needs_core_models:
        yield ("--use-mcore-models",)
    yield ("--transformer-impl", "transformer_engine")
    if software.attention_kernel != "math":
        flash = ("--attention-backend", "flash") if version.has_attention_backend else None
        yield flash or ("--use-flash-attn",)
    if not software.dropout:
        yield ("--attention-dropout", "0.0")
        yield ("--hidden-dropout", "0.0")
    if not software.fused_accumulation or job.layout.zero >= 2:
        yield ("--no-gradient-accumulation-fusion",)
    if software.fused_loss:
        yield ("--cross-entropy-loss-fusion",)
    if job.layout.vpp > 1 and not software.overlap_messages:
        yield ("--no-overlap-p2p-communication",)


def seed_options(job: Job, findings: Findings) -> Iterator[Option]:
    """Megatron-LM refuses 0."""
    yield ("--seed", str(job.training.seed or 1))
    if job.training.seed == 0:
        findings.note("seed: 1, for 0 is refused")


def data_options(job: Job, findings: Findings) -> Iterator[Option]:
    """Random tokens of the model's vocabulary, so that the job starts at once."""
    vocabulary = job.model.embedding.vocab_size
    yield ("--mock-data",)
    yield ("--tokenizer-type", "NullTokenizer")
    yield ("--vocab-size", str(vocabulary - 1))  # this tokenizer adds one token for itself
    step = VOCABULARY_MULTIPLE * job.layout.tp
    padded = -(-vocabulary // step) * step
    findings.note("data: random tokens; give --data-path and your tokenizer in their place")
    if padded != vocabulary:
        findings.note(
            f"vocabulary: {vocabulary:,} rows are padded to {padded:,}, the next multiple of"
            f" {VOCABULARY_MULTIPLE} x tp"
        )
    if not job.states_steps:
        findings.note(
            f"length: the plan states no number of tokens; {FIRST_STEPS} steps to begin with"
        )


def refuse_partial_training(training: TrainingSpec, findings: Findings, target: str) -> None:
    """Adapters, frozen towers and label smoothing, which no exported file can say."""
    if training.trainable != "full":
        findings.refuse(
            "trainable", f"{training.trainable} is trained; {target}'s options train all weights",
            "--trainable full",
        )  # fmt: skip
    if training.label_smoothing:
        findings.refuse(
            "label_smoothing", f"{target} has no option for label smoothing", "label_smoothing = 0"
        )
