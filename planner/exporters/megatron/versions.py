"""Which Megatron-LM: what its generations can be told.

Read from ``training/arguments.py`` and ``core/transformer/transformer_config.py`` of the main
branch in August 2026, of core 0.15 and of core r0.9.0, which MT-MegatronLM patches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwright.planner.exporters.rules import TARGETS, Target
from shardwright.specs import InputError


@dataclass(frozen=True, slots=True)
class MegatronVersion:
    """What one generation has, where generations differ."""

    name: str
    """As ``--target-version`` takes it."""
    rules: Target
    """What it takes of a layout."""
    recompute_modules: frozenset[str]
    """Values of ``--recompute-modules``, in our names; core_attn alone where there is no such
    option."""
    fp8_recipes: frozenset[str]
    has_cp_kinds: bool
    """``--cp-comm-type``; else only the ring."""
    has_predictions: bool
    """Multi-token prediction."""
    has_precision_aware_optimizer: bool
    has_optimizer_instances: bool
    """ZeRO 1 over a part of the data-parallel ranks."""
    has_muon: bool
    needs_core_models: bool
    """``--use-mcore-models`` must be said."""
    has_sigmoid_router: bool
    has_attention_backend: bool
    has_bf16_gradients: bool
    """``--grad-reduce-in-bf16``."""
    has_fp4: bool
    has_latent_experts: bool


_MODULES = frozenset(
    {"core_attn", "moe_act", "norm", "mla_up_proj", "mlp", "moe", "shared_experts"}
)

_MAIN = MegatronVersion(
    name="main",
    rules=TARGETS["megatron-lm"],
    recompute_modules=_MODULES,
    fp8_recipes=frozenset({"delayed", "tensorwise", "blockwise", "mxfp8"}),
    has_cp_kinds=True,
    has_predictions=True,
    has_precision_aware_optimizer=True,
    has_optimizer_instances=True,
    has_muon=True,
    needs_core_models=False,
    has_sigmoid_router=True,
    has_attention_backend=True,
    has_bf16_gradients=True,
    has_fp4=True,
    has_latent_experts=True,
)

_R09 = MegatronVersion(
    name="core_r0.9.0",
    rules=TARGETS["megatron-lm-r0.9.0"],
    recompute_modules=frozenset({"core_attn"}),
    fp8_recipes=frozenset({"delayed"}),
    has_cp_kinds=False,
    has_predictions=False,
    has_precision_aware_optimizer=False,
    has_optimizer_instances=False,
    has_muon=False,
    needs_core_models=True,
    has_sigmoid_router=False,
    has_attention_backend=False,
    has_bf16_gradients=False,
    has_fp4=False,
    has_latent_experts=False,
)

_V015 = replace(
    _MAIN,
    name="core_v0.15.0",
    rules=replace(_MAIN.rules, version="core 0.15.0", repeats_kv_heads=False),
    has_muon=False,
    has_latent_experts=False,
)

VERSIONS = {version.name: version for version in (_MAIN, _V015, _R09)}
_ALIASES = {
    "2026": "main", "core_v0.15": "core_v0.15.0", "0.15": "core_v0.15.0", "0.15.0": "core_v0.15.0",
    "core_v0.9.0": "core_r0.9.0", "r0.9.0": "core_r0.9.0", "0.9.0": "core_r0.9.0",
    "0.9": "core_r0.9.0", "mt-megatronlm": "core_r0.9.0",
}  # fmt: skip


def version_of(name: str | None) -> MegatronVersion:
    """The generation of a name; the newest where none is given.

    Raises:
        InputError: there is none of that name.
    """
    text = (name or "main").strip().lower()
    found = VERSIONS.get(_ALIASES.get(text, text))
    if found is None:
        raise InputError(
            f"the rules of Megatron-LM {name!r} are not known",
            fix=f"choose one of {', '.join(VERSIONS)}",
        )
    return found
