"""What each kind of check asks of a job, and whether the answer holds.

| kind | holds where |
|---|---|
| fits, oom | the layout fits, does not fit; an ``edge`` is both |
| peak_memory_gib, step_time_s, tokens_per_s_per_gpu, gpu_hours | min <= value <= max |
| parameters, sum_stage_layers | the count equals |
| rank | the variants come strictly in that order: least time or memory first, most tokens first |
| choose, choose_at_least | the planner's value is among those, or no less |
| valid, invalid | no rule is broken; the named one is |
| export_refused | the target's own rules refuse the layout, and for that reason |
| min_gpus | the fewest devices on which something fits, in steps of ``multiple_of`` |
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from benchmarks.user_case_jobs import (
    Job,
    Priced,
    Record,
    broken_rules,
    job_of,
    layouts_of,
    model_alone,
    on_devices,
    price,
    variants_of,
)
from shardwright.planner.exporters.rules import broken_target_rules
from shardwright.planner.layout_text import recompute_text
from shardwright.planner.validation.shapes import Configs
from shardwright.specs import InputError, Layout, Prediction, ShardwrightError
from shardwright.specs._base import describe_misfits

logger = logging.getLogger(__name__)

_MOST_COUNTS = 32
"""Device counts that ``min_gpus`` tries at most."""

RULES_OF: dict[str, tuple[str, ...]] = {
    "ep": ("expert_grid", "experts"), "etp": ("expert_grid", "experts"),
    "experts": ("expert_grid", "experts"), "global_batch": ("batch", "global_batch"),
    "batch": ("batch", "global_batch"), "micro_batch": ("batch", "global_batch"),
    "layers": ("stage_layers", "layers"), "stages": ("stage_layers", "layers", "layout"),
    "pp": ("stage_layers", "layers", "world_size", "schedule"),
    "heads": ("attention_heads", "heads"), "kv": ("kv_heads",), "kv_heads": ("kv_heads",),
    "tp": ("attention_heads", "heads", "kv_heads", "world_size", "ffn_size", "ffn"),
    "vocab": ("vocab_size",), "world": ("world_size",), "gpus": ("world_size",),
    "dp": ("world_size", "batch"), "cp": ("context_parallel",),
    "seq_len": ("seq_len", "context_parallel", "sequence_parallel"),
    "sequence": ("seq_len", "context_parallel", "sequence_parallel"),
    "sp": ("sequence_parallel",), "schedule": ("schedule", "num_microbatches"),
    "vpp": ("schedule", "num_microbatches"), "zero": ("zero", "zero_shard_degree"),
}  # fmt: skip
"""What checks call a cause: our rules. Any other word must occur in what a rule says."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a check holds, with the numbers."""

    passed: bool
    predicted: Any
    expected: Any
    reason: str


class Judge:
    """Judges checks of every kind."""

    def __init__(self, configs: Configs, time_limit_s: float | None) -> None:
        self._configs, self._time_limit_s = configs, time_limit_s
        self._kinds: dict[str, Callable[[Record, Mapping[str, Any]], Verdict]] = {
            "fits": self._fits, "oom": self._oom, "rank": self._rank, "choose": self._choose,
            "choose_at_least": self._choose_at_least, "valid": self._valid,
            "invalid": self._invalid, "export_refused": self._export_refused,
            "min_gpus": self._min_gpus, "sum_stage_layers": self._sum_stage_layers,
            "parameters": self._parameters, "gpu_hours": self._gpu_hours,
        }  # fmt: skip
        self._ranges: dict[str, Callable[[Priced], float]] = {
            "peak_memory_gib": lambda one: one.peak_gib,
            "step_time_s": lambda one: one.prediction.step_time_s,
            "tokens_per_s_per_gpu": lambda one: one.prediction.tokens_per_s_per_gpu,
            "tokens_per_s": lambda one: one.prediction.tokens_per_s,
        }

    def judge(self, check: Record) -> Verdict:
        """The verdict; what cannot be answered fails with the reason."""
        wanted = check.get("check")
        if not isinstance(wanted, Mapping):
            return Verdict(False, None, None, "the check asks nothing")
        kind = wanted.get("kind")
        try:
            if kind in self._ranges:
                return self._range(check, wanted)
            if kind not in self._kinds:
                return Verdict(False, None, None, f"the kind {kind!r} is not known")
            return self._kinds[kind](check, wanted)
        except ShardwrightError as error:
            return Verdict(False, None, _expected(wanted), f"cannot be answered: {error}")
        except ValidationError as error:
            words = describe_misfits(error, most=2)
            return Verdict(False, None, _expected(wanted), f"cannot be answered: {words}")
        except (KeyError, TypeError, ValueError) as error:
            what = f"no {error.args[0]}" if isinstance(error, KeyError) else str(error)
            return Verdict(False, None, _expected(wanted), f"the check is malformed: {what}")
        except Exception as error:  # one check's fault must not hide what became of the others
            logger.exception("check %s", check.get("id"))
            return Verdict(False, None, _expected(wanted), f"a fault of ours: {error!r}")

    def _job(self, check: Record) -> Job:
        return job_of(check, self._configs)

    def _priced(self, check: Record) -> Priced | str:
        return price(self._job(check), self._time_limit_s)

    # Memory

    def _fits(self, check: Record, wanted: Mapping[str, Any]) -> Verdict:
        answer = self._priced(check)
        if isinstance(answer, str):
            return Verdict(False, "does_not_fit", "fits", answer)
        fits = answer.prediction.memory_verdict != "does_not_fit"
        return Verdict(fits and answer.fits_host, _fate(answer), "fits", _memory_words(answer))

    def _oom(self, check: Record, wanted: Mapping[str, Any]) -> Verdict:
        answer = self._priced(check)
        if isinstance(answer, str):
            return Verdict(answer.startswith("nothing fits"), "does_not_fit", "oom", answer)
        fits = answer.prediction.memory_verdict == "fits" and answer.fits_host
        return Verdict(not fits, _fate(answer), "oom", _memory_words(answer))

    # Ranges

    def _range(self, check: Record, wanted: Mapping[str, Any]) -> Verdict:
        answer = self._priced(check)
        expected = [wanted.get("min"), wanted.get("max")]
        if isinstance(answer, str):
            return Verdict(False, None, expected, answer)
        return _within(self._ranges[wanted["kind"]](answer), wanted, _all_words(answer))

    def _gpu_hours(self, check: Record, wanted: Mapping[str, Any]) -> Verdict:
        job = self._job(check)
        if job.training.token_budget is None:
            raise InputError("the training has no tokens")
        answer = price(job, self._time_limit_s)
        if isinstance(answer, str):
            return Verdict(False, None, _expected(wanted), answer)
        seconds = job.training.token_budget / answer.prediction.tokens_per_s_per_gpu
        return _within(seconds / 3600, wanted, _all_words(answer))

    # Order

    def _rank(self, check: Record, wanted: Mapping[str, Any]) -> Verdict:
        by, order = str(wanted["by"]), [str(name) for name in wanted["order"]]
        if by not in _MEASURES:
            return Verdict(False, None, order, f"layouts cannot be ranked by {by!r}")
        found: dict[str, float] = {}
        variants = variants_of(check)
        for name in order:
            if name not in variants:
                return Verdict(False, None, order, f"there is no variant {name!r}")
            answer = self._priced(variants[name])
            if isinstance(answer, str):
                return Verdict(False, None, order, f"{name} {answer}")
            found[name] = _MEASURES[by](answer)
        sign = -1 if by in _MORE_FIRST else 1
        values = [sign * found[name] for name in order]
        passed = all(one < other for one, other in itertools.pairwise(values))
        ranked = sorted(found, key=lambda name: sign * found[name])
        words = ", ".join(f"{name} {found[name]:.4g}" for name in ranked)
        return Verdict(passed, ranked, order, f"{by}: {words}")

    # Choices

    def _choose(self, check: Record, wanted: Mapping[str, Any]) -> Verdict:
        values = list(wanted["in"])
        value, words = self._chosen(check, str(wanted["field"]))
        return Verdict(value in values, value, values, words)

    def _choose_at_least(self, check: Record, wanted: Mapping[str, Any]) -> Verdict:
        names = ("min", "at_least", "value", "equals", "least")
        least = next((wanted[name] for name in names if wanted.get(name) is not None), None)
        if least is None:
            raise InputError("it does not say at least what")
        value, words = self._chosen(check, str(wanted["field"]))
        order = ("none", "selective", "full")
        if value in order and least in order:
            return Verdict(order.index(value) >= order.index(least), value, least, words)
        return Verdict(value is not None and value >= least, value, least, words)

    def _chosen(self, check: Record, field: str) -> tuple[Any, str]:
        answer = self._priced(check)
        if isinstance(answer, str):
            return None, answer
        return value_of(answer.layout, field), _all_words(answer)

    def _min_gpus(self, check: Record, wanted: Mapping[str, Any]) -> Verdict:
        step = int(wanted.get("multiple_of") or 1)
        most = max(_MOST_COUNTS * step, int(wanted.get("max") or 0))
        for count in range(step, most + 1, step):
            try:
                answer = self._priced(on_devices(check, count))
            except InputError:
                continue  # no cluster has this many, or nothing obeys the rules there
            if isinstance(answer, str) or not answer.fits_host:
                continue
            if answer.prediction.memory_verdict != "does_not_fit":
                return _within(count, wanted, _all_words(answer))
        return Verdict(False, None, _expected(wanted), f"nothing fits {most} devices")

    # Rules

    def _violations(self, check: Record) -> tuple[list[tuple[str, str]], Layout | None]:
        """Broken rules of the stated layout; values that make no layout count as one."""
        job = self._job(check)
        try:
            layouts = layouts_of(job)
        except InputError as error:
            return [("layout", str(error))], None
        return broken_rules(job, layouts[0]), layouts[0]

    def _valid(self, check: Record, wanted: Mapping[str, Any]) -> Verdict:
        broken, _ = self._violations(check)
        words = "; ".join(text for _, text in broken) or "obeys every rule"
        return Verdict(not broken, "invalid" if broken else "valid", "valid", words)

    def _invalid(self, check: Record, wanted: Mapping[str, Any]) -> Verdict:
        broken, _ = self._violations(check)
        because = wanted.get("because")
        words = "; ".join(f"{rule}: {text}" for rule, text in broken) or "obeys every rule"
        passed = any(is_because(rule, text, because) for rule, text in broken)
        expected = "invalid" if because is None else f"invalid because {because}"
        return Verdict(passed, "invalid" if broken else "valid", expected, words)

    def _export_refused(self, check: Record, wanted: Mapping[str, Any]) -> Verdict:
        job = self._job(check)
        target, because = str(wanted["target"]), wanted.get("because")
        layout = layouts_of(job)[0]
        found = broken_target_rules(target, layout, job.model, job.training)
        words = "; ".join(f"{one.rule}: {one}" for one in found) or f"{target} takes it"
        passed = any(is_because(one.rule, str(one), because) for one in found)
        expected = f"refused by {target}" + (f" because {because}" if because else "")
        return Verdict(passed, "refused" if found else "taken", expected, words)

    # Counts

    def _sum_stage_layers(self, check: Record, wanted: Mapping[str, Any]) -> Verdict:
        job = self._job(check)
        if not job.choices:
            answer = price(job, self._time_limit_s)
            if isinstance(answer, str):
                return Verdict(False, None, wanted["equals"], answer)
            layouts = [answer.layout]
        else:
            layouts = layouts_of(job)
        sums = {sum(stage.num_layers for stage in one.stages) for one in layouts}
        counts = "+".join(str(stage.num_layers) for stage in layouts[0].stages)
        total = sums.pop() if len(sums) == 1 else None
        return Verdict(total == wanted["equals"], total, wanted["equals"], f"stages of {counts}")

    def _parameters(self, check: Record, wanted: Mapping[str, Any]) -> Verdict:
        count = model_alone(check, self._configs).num_parameters
        if "equals" not in wanted:
            return _within(count, wanted, "counted from the config")
        return Verdict(
            count == wanted["equals"], count, wanted["equals"], "counted from the config"
        )


_MEASURES: dict[str, Callable[[Priced], float]] = {
    "step_time": lambda one: one.prediction.step_time_s,
    "step_time_s": lambda one: one.prediction.step_time_s,
    "tokens_per_s": lambda one: one.prediction.tokens_per_s,
    "tokens_per_s_per_gpu": lambda one: one.prediction.tokens_per_s_per_gpu,
    "mfu": lambda one: one.prediction.mfu or 0.0,
    "peak_memory": lambda one: one.peak_gib,
    "peak_memory_gib": lambda one: one.peak_gib,
}
_MORE_FIRST = ("tokens_per_s", "tokens_per_s_per_gpu", "mfu")


def is_because(rule: str, text: str, because: Any) -> bool:
    """Whether a broken rule is the named cause; without a name any is."""
    if because is None:
        return True
    cause = str(because).lower()
    if rule in RULES_OF.get(cause, ()):
        return True
    word = rf"(?<![a-z0-9]){re.escape(cause)}(?![a-z0-9])"
    return cause not in RULES_OF and re.search(word, f"{rule} {text}".lower()) is not None


def value_of(layout: Layout, field: str) -> Any:
    """A layout's value by the name that checks use."""
    if field == "recompute":
        return recompute_text(layout.recompute).split(":")[0]
    if field == "offload":
        return "+".join(sorted(layout.offload)) or "none"
    if field == "schedule":
        return None if layout.schedule is None else str(layout.schedule)
    if field == "chunked_loss":
        return layout.loss_chunks > 1
    if field not in Layout.model_fields:
        raise InputError(f"a layout has no {field!r}")
    return getattr(layout, field)


def _within(value: float, wanted: Mapping[str, Any], words: str) -> Verdict:
    least, most = wanted.get("min"), wanted.get("max")
    passed = (least is None or value >= least) and (most is None or value <= most)
    return Verdict(passed, value, [least, most], words)


def _expected(wanted: Mapping[str, Any]) -> Any:
    left = {key: value for key, value in wanted.items() if key != "kind"}
    return left or wanted.get("kind")


def _fate(answer: Priced) -> str:
    return answer.prediction.memory_verdict if answer.fits_host else "host_does_not_fit"


def _memory_words(answer: Priced) -> str:
    capacity = answer.prediction.memory_capacity_bytes / 2**30
    words = f"peak {answer.peak_gib:.1f} of {capacity:.1f} GiB ({_parts(answer.prediction)})"
    if answer.host_bytes:
        words += f", {answer.host_bytes / 2**30:.0f} GiB of host memory a node"
        if answer.host_capacity_bytes is not None:
            words += f" of {answer.host_capacity_bytes / 2**30:.0f}"
    return words


def _parts(prediction: Prediction) -> str:
    fullest = max(prediction.memory, key=lambda parts: parts.total_bytes)
    names = [name for name in type(fullest).model_fields if getattr(fullest, name) > 2**28]
    return ", ".join(f"{name} {getattr(fullest, name) / 2**30:.1f}" for name in names)


def _all_words(answer: Priced) -> str:
    one, layout = answer.prediction, answer.layout
    degrees = " ".join(
        f"{name}{getattr(layout, name)}"
        for name in ("tp", "cp", "pp", "vpp", "dp", "ep", "etp")
        if getattr(layout, name) > 1
    )
    policy = recompute_text(layout.recompute)
    return (
        f"{degrees or 'one device'} mb{layout.micro_batch} zero{layout.zero} recompute {policy}:"
        f" {one.step_time_s:.4g} s, {one.tokens_per_s_per_gpu:.5g} tokens/s per GPU,"
        f" {_memory_words(answer)}"
    )
