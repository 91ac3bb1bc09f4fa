"""How many rows the vocabulary's table has: stated, of a known tokenizer, or assumed in words."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.planner.importers.megatron.arguments import Arguments

_TOKENIZERS = {
    "GPT2BPETokenizer": (50257, "GPT-2's tokenizer"),
    "BertWordPieceLowerCase": (30522, "BERT's lower-case tokenizer"),
    "BertWordPieceCase": (28996, "BERT's cased tokenizer"),
    "Llama2Tokenizer": (32000, "Llama 2's tokenizer"),
    "Llama3Tokenizer": (128256, "Llama 3's tokenizer"),
    "MistralTokenizer": (32000, "Mistral's tokenizer"),
    "QwenTokenizer": (151936, "Qwen's tokenizer"),
    "Qwen2Tokenizer": (151936, "Qwen's tokenizer"),
    "LLaMASentencePieceTokenizer": (32000, "Llama's tokenizer"),
}
"""Sizes that their publishers state."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Rows of the table, and how they came to be known."""

    size: int
    assumed: str | None
    """None where the script states it."""


def vocabulary_of(
    arguments: Arguments, *, resembles: tuple[str, int] | None, usual: str = "GPT2BPETokenizer"
) -> Vocabulary:
    """The padded vocabulary of a model.

    Megatron-LM pads to a multiple of ``--make-vocab-size-divisible-by`` (128) times tp
    (``training/vocab_utils.py``). ``resembles``: name and vocabulary of a known model with the same
    sizes, taken where the script names no tokenizer of known size; ``usual``: the tokenizer where
    nothing is known.
    """
    whole = arguments.count("padded-vocab-size") or arguments.count("pad-vocab-size-to")
    if whole is not None:
        return Vocabulary(whole, None)
    tokens, assumed = _tokens(arguments, resembles, usual)
    step = (arguments.count("make-vocab-size-divisible-by") or 128) * (
        arguments.count("tensor-model-parallel-size") or 1
    )
    padded = -(-tokens // step) * step
    if assumed is not None and padded != tokens:
        assumed = f"{padded} ({assumed}, padded to a multiple of {step})"
    elif assumed is not None:
        assumed = f"{padded} ({assumed})"
    return Vocabulary(padded, assumed)


def _tokens(
    arguments: Arguments, resembles: tuple[str, int] | None, usual: str
) -> tuple[int, str | None]:
    """Tokens, and in words where they are not stated."""
    kind = arguments.text("tokenizer-type")
    extra = arguments.count("vocab-extra-ids") or 0
    stated = arguments.count("vocab-size")
    if stated is not None:
        # This tokenizer adds one token that ends a document.
        return stated + (kind in ("NullTokenizer", "NullMultimodalTokenizer")) + extra, None
    named = _by_model_name(arguments.text("tokenizer-model"))
    if named is not None:
        return named[1] + extra, f"{named[1]} tokens of {named[0]}"
    if kind in _TOKENIZERS:
        size, words = _TOKENIZERS[kind]
        return size + extra, f"{size} tokens of {words}"
    if resembles is not None:
        name, size = resembles
        return size + extra, f"{size} tokens as {name}, whose sizes these are"
    size, words = _TOKENIZERS[usual]
    return size + extra, f"{size} tokens of {words}"


def _by_model_name(name: str | None) -> tuple[str, int] | None:
    """The preset whose hub id a tokenizer is named by."""
    from shardwright.specs.sources.presets import find_preset

    if not name:
        return None
    parts = name.rstrip("/").split("/")
    for text in ("/".join(parts[-2:]), parts[-1]):
        known = find_preset(text)
        if known is not None:
            size = known.read().spec.vocab_size
            return None if size is None else (known.slug, size)
    return None
