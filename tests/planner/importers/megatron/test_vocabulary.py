"""Rows of the vocabulary's table."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.megatron.vocabulary import vocabulary_of
from tests.planner.importers.megatron.scripts import arguments_of


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("--vocab-size 50257", 50304),
        ("--vocab-size 50257 --tensor-model-parallel-size 8", 51200),
        ("--vocab-size 32000 --tokenizer-type NullTokenizer", 32128),
        ("--padded-vocab-size 7", 7),
        ("--pad-vocab-size-to 250880", 250880),
        ("--vocab-size 32000 --make-vocab-size-divisible-by 1", 32000),
    ],
)
def test_stated_sizes_are_padded_as_megatron_pads(line: str, wanted: int) -> None:
    found = vocabulary_of(arguments_of(line), resembles=("other", 5))
    assert (found.size, found.assumed) == (wanted, None)


def test_what_is_not_stated_is_assumed_in_words() -> None:
    found = vocabulary_of(arguments_of(""), resembles=None)
    assert found.size == 50304
    assert "GPT-2" in (found.assumed or "")
    assert vocabulary_of(arguments_of(""), resembles=("mixtral", 32000)).size == 32000
    named = vocabulary_of(
        arguments_of("--tokenizer-model meta-llama/Llama-2-7b-hf"), resembles=None
    )
    assert named.size == 32000
    typed = arguments_of("--tokenizer-type Llama3Tokenizer")
    assert vocabulary_of(typed, resembles=None).size == 128256
