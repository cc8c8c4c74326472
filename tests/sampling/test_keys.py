"""Keys of objects in JSON: each once, as JSON's writers escape them, whatever the tokens."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from penstock.core.grammar import Grammar
from penstock.sampling.keys import Keys, KeyTokens
from support.random_outputs import PIECES, RandomOutputs, unique

FREE: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "integer"}}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object"},
    FREE,
    {**FREE, "minProperties": 4},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 2, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "patternProperties": {"^b": {"type": "null"}}},
    {"type": "array", "items": {"type": "object", "minProperties": 2, "maxProperties": 3}, "minItems": 2},
    {"type": "object", "additionalProperties": {**FREE, "minProperties": 2}, "minProperties": 2},
    {"type": "object", "properties": {"\u0001": {"type": "null"}, "a\n": {"type": "null"}, 'q"': True}},
]


@pytest.fixture(scope="module")
def outputs() -> RandomOutputs:
    return RandomOutputs()


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_keys_are_unique_and_answers_valid(outputs: RandomOutputs, schema: dict[str, Any]) -> None:
    chance, complete, most_keys = random.Random(str(schema)), 0, 0
    for _ in range(60):
        text = outputs.draw(Grammar.json_schema(schema), chance)
        if text is None:
            continue
        complete += 1
        value = json.loads(text, object_pairs_hook=unique)
        jsonschema.validate(value, schema)
        most_keys = max(most_keys, len(value))
    assert complete >= 20 and most_keys > 1


def test_a_key_may_be_what_another_begins_with_and_stand_in_other_objects(outputs: RandomOutputs) -> None:
    for text in ('{"a": 1, "ab": 2, "": 3, "A": 4}', '{"x": {"a": 1}, "a": {"a": [{"a": 1}, {"a": 2}]}, "b\\n": "a"}'):
        matcher = outputs.grammars.matcher(Grammar.json_object())
        masks = np.zeros((1, (len(PIECES) + 31) // 32), np.uint32)
        for byte in text.encode():
            outputs.grammars.fill([matcher], masks)
            assert masks[0][byte // 32] >> byte % 32 & 1, text
            matcher.advance(byte)


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', '{"a": {}, "b": [1, {"c": "}"}], "a": 2}', '{"b\\n": 1, "b\\n": 2}']
)
@pytest.mark.parametrize("before", ["", '<think>It is "{" or {a}, see [1].</think>', "<tool_call>\n", "[f(x="])
def test_every_way_to_repeat_a_key_is_closed(before: str, text: str) -> None:
    """Cut into a token at any place, what completes the key is forbidden."""
    last = text.rindex('"', 0, text.rindex(":")) + 1
    for start in range(last):
        assert allowed_ends(before, text, start) == list(range(start + 1, last))


def allowed_ends(before: str, text: str, start: int) -> list[int]:
    """The places up to which one token may take the text from `start` on."""
    keys = Keys()
    assert keys.feed((before + text[:start]).encode())
    tokens = KeyTokens([text[start:end].encode() for end in range(start + 1, len(text) + 1)])
    mask = np.full(len(text) // 32 + 1, 2**32 - 1, np.uint32)
    tokens.forbid(keys, mask)
    return [start + 1 + token for token in range(len(text) - start) if mask[token // 32] >> token % 32 & 1]


@pytest.mark.parametrize("key", ["\\u0061", "\\u000a", "\\u007f", "\\u001F", "x\\u0041"])
def test_every_way_to_escape_a_key_needlessly_is_closed(key: str) -> None:
    text = '{"z": 1, "' + key + '": 2}'
    wrong = next(end for end in range(len(text)) if not Keys().feed(text[: end + 1].encode()))
    assert wrong < text.rindex('"')
    for start in range(wrong + 1):
        assert allowed_ends("", text, start) == list(range(start + 1, wrong + 1))
    assert Keys().feed(b'{"\\u0001\\n\\"": 1, "b": "\\u0061"}')


def test_text_that_is_no_json_is_left_alone() -> None:
    keys = Keys()
    assert keys.feed(b'Say "a": {a: 1}, {"a" "a"}, {"a": 1 "a": 1}, ["a": 1, "a": 2], {x"\\u0061"} and "\\u0061": 1.')
