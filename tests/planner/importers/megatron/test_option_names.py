"""The lists of names do not contradict each other."""

from __future__ import annotations

from shardwright.planner.importers.megatron.option_names import (
    FLAGS,
    MANY,
    OLD_NAMES,
    VALUED,
    WITHOUT_EFFECT,
)


def test_a_name_is_a_flag_or_takes_a_value() -> None:
    assert not FLAGS & VALUED
    assert MANY <= VALUED


def test_old_names_lead_to_known_ones_that_are_not_old() -> None:
    for old, new in OLD_NAMES.items():
        assert new in FLAGS | VALUED, old
        assert new not in OLD_NAMES


def test_data_and_logs_are_without_effect_and_sizes_are_not() -> None:
    assert all(
        WITHOUT_EFFECT.fullmatch(name) for name in ("data-path", "save-interval", "no-load-rng")
    )
    assert not any(WITHOUT_EFFECT.fullmatch(name) for name in ("num-layers", "frobnicate"))
