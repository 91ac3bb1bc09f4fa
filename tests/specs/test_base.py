"""Frozen, strict records with one canonical text."""

from __future__ import annotations

import pytest
from pydantic import PositiveInt, ValidationError, model_validator

from shardwright.specs import InputError, Spec
from shardwright.specs._base import describe_misfits, parse_json


class Pair(Spec):
    low: PositiveInt
    high: PositiveInt

    @model_validator(mode="after")
    def _ordered(self) -> Pair:
        if self.high < self.low:
            raise ValueError(f"high ({self.high}) is below low ({self.low})")
        return self


def test_the_canonical_text_is_stable_and_comes_back() -> None:
    pair = Pair(low=1, high=2)
    assert pair.to_json() == '{\n  "low": 1,\n  "high": 2\n}\n'
    assert Pair.from_json(pair.to_json()) == pair
    assert Pair.from_json('{"high": 2, "low": 1}').to_json() == pair.to_json()


def test_equal_records_have_equal_hashes_and_others_do_not() -> None:
    assert Pair(low=1, high=2).content_hash() == Pair(low=1, high=2).content_hash()
    assert Pair(low=1, high=2).content_hash() != Pair(low=1, high=3).content_hash()
    assert hash(Pair(low=1, high=2)) == hash(Pair(low=1, high=2))


def test_records_are_frozen() -> None:
    pair = Pair(low=1, high=2)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(pair, "low", 2)  # noqa: B010 - mypy knows that it is frozen


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "my.json is not valid JSON"),
        ("[" * 100_000, "my.json is not valid JSON"),
        ("[]", "my.json is not a valid Pair"),
        ('{"low": 0, "high": 2}', r"low: .* greater than 0 \(got 0\)"),
        ('{"low": 1}', "high: Field required"),
        ('{"low": 1, "high": 2, "more": 3}', r"more: .*not permitted \(got 3\)"),
        ('{"low": 3, "high": 2}', r"a valid Pair: high \(2\) is below low \(3\)"),
    ],
)
def test_misfits_are_named_with_the_source(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Pair.from_json(text, source="my.json")
    assert "\n" not in str(caught.value)


def test_every_misfit_is_listed_up_to_a_few() -> None:
    value = {f"extra{index}": index for index in range(9)}
    with pytest.raises(ValidationError) as caught:
        Pair.model_validate(value)
    text = describe_misfits(caught.value)
    assert text.count(";") == 5
    assert text.endswith("and 6 more")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' is given 2 times in one object"),
        (r'{"a": "\ud800"}', "half of a surrogate pair"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
    ],
)
def test_json_that_python_would_take_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"x.json is not valid JSON: .*{message}"):
        parse_json(text, source="x.json")


def test_equal_keys_of_different_objects_and_whole_pairs_are_fine() -> None:
    text = r'{"a": {"b": 1}, "c": {"b": "\ud83d\ude00"}}'
    assert parse_json(text, source="x.json") == {"a": {"b": 1}, "c": {"b": "\U0001f600"}}
