"""The tokenizer keeps to the vocabulary, keeps the text, and is the same on every machine."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from shardwright.runtime.data.corpus import Corpus, open_corpus
from shardwright.runtime.data.tokenizer import END_OF_TEXT, encode_corpus, train_tokenizer
from shardwright.specs import InputError


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    (tmp_path / "a.txt").write_text("low lower lowest, new newer newest\n" * 50, encoding="utf-8")
    (tmp_path / "b.txt").write_text("widest \u4e16\u754c \U0001f600\n" * 3, encoding="utf-8")
    return open_corpus(str(tmp_path))


@pytest.mark.parametrize("vocab_size", [257, 270, 50_000])
def test_text_survives_and_ids_stay_below_the_vocabulary(corpus: Corpus, vocab_size: int) -> None:
    tokenizer = train_tokenizer(corpus, vocab_size)
    ids = list(itertools.chain.from_iterable(encode_corpus(corpus, tokenizer)))
    assert max(ids) < vocab_size
    separator = tokenizer.token_to_id(END_OF_TEXT)
    assert [index for index, token in enumerate(ids) if token == separator][1:] == [len(ids) - 1]
    documents = tokenizer.decode(ids, skip_special_tokens=False).split(END_OF_TEXT)
    assert documents == [*("".join(document) for document in corpus.documents()), ""]


def test_training_twice_gives_the_same_tokenizer(corpus: Corpus) -> None:
    assert train_tokenizer(corpus, 300).to_str() == train_tokenizer(corpus, 300).to_str()


def test_vocabulary_smaller_than_the_bytes_is_refused(corpus: Corpus) -> None:
    with pytest.raises(InputError, match="vocabulary of 256 is too small"):
        train_tokenizer(corpus, 256)
