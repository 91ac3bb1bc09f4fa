"""Software choices are strict."""

from __future__ import annotations

import pytest

from shardwright.specs import InputError, SoftwareSpec
from shardwright.specs.training import Precision


def test_defaults_come_back_from_their_text() -> None:
    assert SoftwareSpec.from_json(SoftwareSpec().to_json()) == SoftwareSpec()


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(InputError, match="attention_kernel"):
        SoftwareSpec.from_value({"attention_kernel": "fast"})


def test_tensor_parallelism_overlaps_but_in_the_precisions_that_are_excepted() -> None:
    excepted = (Precision.NVFP4,)
    software = SoftwareSpec(overlap_tensor_parallel=True, overlap_tensor_parallel_except=excepted)
    assert software.overlaps_tensor_parallel(Precision.MXFP8)
    assert not software.overlaps_tensor_parallel(Precision.NVFP4)
    without = software.model_copy(update={"overlap_tensor_parallel": False})
    assert not without.overlaps_tensor_parallel(Precision.MXFP8)
