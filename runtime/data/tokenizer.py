"""A byte-level BPE tokenizer, trained on the corpus to the model's vocabulary size."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from shardwright.runtime.data.corpus import Corpus
from shardwright.runtime.progress import progress_bar
from shardwright.specs import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
"""Separates documents; always id 0."""
SMALLEST_VOCABULARY = 257
"""One id per byte, and the separator."""

_TRAINING_BYTES = 64 << 20
"""Pieces of text beyond this many characters are not used to train the tokenizer: merges of the
most frequent pairs are settled long before, and counting words takes memory."""


def train_tokenizer(corpus: Corpus, vocab_size: int) -> Tokenizer:
    """A tokenizer whose ids are all below ``vocab_size``.

    Little text gives fewer merges than asked for. Of a large corpus, an even selection of pieces
    is read.

    Raises:
        InputError: ``vocab_size`` has no room for the 256 bytes and the separator.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise InputError(
            f"the model's vocabulary of {vocab_size} is too small for text",
            why=f"a byte-level tokenizer needs at least {SMALLEST_VOCABULARY} ids",
            fix=f"plan a model with vocab_size >= {SMALLEST_VOCABULARY}, or use --data mock",
        )
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_text(corpus), trainer)
    assert tokenizer.get_vocab_size() <= vocab_size
    return tokenizer


def _training_text(corpus: Corpus) -> Iterator[str]:
    """Every piece of a small corpus; evenly spaced pieces of a large one."""
    every = max(1, round(corpus.num_bytes / _TRAINING_BYTES))
    pieces = (piece for document in corpus.documents() for piece in document)
    return itertools.islice(pieces, 0, None, every)


def encode_corpus(
    corpus: Corpus, tokenizer: Tokenizer, *, progress: bool = True
) -> Iterator[list[int]]:
    """The token ids of the corpus in order, document after document, each with its separator."""
    separator = tokenizer.token_to_id(END_OF_TEXT)
    assert separator is not None
    with progress_bar("Tokenizing", corpus.num_bytes, shown=progress) as advance:
        for document in corpus.documents():
            for batch in _batches(document):
                for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                    yield encoding.ids
                advance(sum(map(len, batch)))
            yield [separator]


def _batches(pieces: Iterable[str], most: int = 8) -> Iterator[list[str]]:
    iterator = iter(pieces)
    while batch := list(itertools.islice(iterator, most)):
        yield batch
