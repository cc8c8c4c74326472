"""Reasoning before an answer that is held to a grammar: it is free, and the answer that is read fits."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from penstock.core.grammar import Grammar
from penstock.text.output_format import OutputFormat, Parsing
from penstock.text.reasoning import Before
from support.language import Language, Vocabulary
from support.pieces import parsed

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}


def fits_schema(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


def matches(expression: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(expression, text) is not None


# A grammar, a text of it, one that is not, and whether a text is.
GRAMMARS: list[tuple[Grammar, str, str, Callable[[str], bool]]] = [
    (Grammar.json_schema(SCHEMA), '{"a": "x"}', '{"b": true}', fits_schema),
    (Grammar.regex(r"\d{2,3}|a+b"), "12", "1", matches(r"[0-9]{2,3}|a+b")),
    (Grammar.regex(r"(?s:.){1,6}"), "Hello", "", matches(r"(?s:.){1,6}")),
    (Grammar.choice(["yes", "no"]), "no", "maybe", matches("yes|no")),
    (Grammar.ebnf('start: "a" thought\nthought: /b+/'), "abb", "a", matches("ab+")),
    (Grammar.ebnf('root ::= "a" [0-9]+'), "a1", "a", matches("a[0-9]+")),
]


@pytest.fixture(scope="module", params=[("<think>", "</think>"), ("</think>",), ()])
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """With marks that are special tokens, one that is, or none."""
    return Vocabulary(tmp_path_factory.mktemp("marks"), request.param)


def language(vocabulary: Vocabulary, grammar: Grammar, before: Before) -> Language:
    rules = OutputFormat(reasoning=True, special_markers=vocabulary.marks).thought_rules(before)
    return Language(vocabulary, Grammar(grammar.kind, grammar.text, "x", rules))


@pytest.mark.parametrize(("grammar", "good", "bad", "fits"), GRAMMARS)
def test_reasoning_is_free_and_the_answer_is_not(
    vocabulary: Vocabulary, grammar: Grammar, good: str, bad: str, fits: Any
) -> None:
    possible = language(vocabulary, grammar, "reasoning")
    for block in ("", "<think></think>", "<think>\nHm {.\n\nÜ <thi </thin\n</think>\n\n", "<think>a</think> "):
        assert block + good in possible and block + bad not in possible
    assert "<think>Hm." not in possible and f"<think>Hm. {good}" not in possible
    opened = language(vocabulary, grammar, "open reasoning")
    for block in ("</think>", "\nHm {.\n</think>\n\n"):
        assert block + good in opened and block + bad not in opened
    assert good not in opened
    closed = language(vocabulary, grammar, "nothing")
    assert good in closed and f"<think>Hm.</think>{good}" not in closed or fits("<think>")


def test_a_closer_that_is_spelled_out_does_not_end_a_block_in_secret(vocabulary: Vocabulary) -> None:
    """Whatever is accepted is read so; where the mark is a special token, its text cannot stand in a block."""
    opened = language(vocabulary, Grammar.choice(["no"]), "open reasoning")
    assert opened.spelled_out("Hm.</think>no") == ("</think>" not in vocabulary.marks)
    assert "Hm.</think>no</think>no" not in opened and not opened.spelled_out("Hm.</think>no</think>no")


@pytest.mark.parametrize(("grammar", "fits"), [(grammar, fits) for grammar, _, _, fits in GRAMMARS])
def test_all_that_is_accepted_is_read(vocabulary: Vocabulary, grammar: Grammar, fits: Callable[[str], bool]) -> None:
    chance, complete = random.Random(grammar.text), 0
    for before, begun in (("reasoning", "<think>Hm.</think>"), ("open reasoning", "Hm.</think>"), ("nothing", "")):
        for _ in range(8):
            text = language(vocabulary, grammar, before).example(chance, begun=begun)  # type: ignore[arg-type]
            if text is None:
                continue
            complete += 1
            parsing = Parsing(reasoning=before != "nothing", reasoning_opened=before == "open reasoning")
            found = parsed(parsing.parser(), list(text))
            assert fits(found["content"]), text
            assert found["reasoning"] == ("" if before == "nothing" else "Hm.")
    assert complete >= 16


def test_an_answer_without_reasoning_does_not_look_like_it(vocabulary: Vocabulary) -> None:
    anything = language(vocabulary, Grammar.regex("(?s:.*)"), "reasoning")
    assert anything.spelled_out("Hello <think>") and " Hello" not in anything
    assert not anything.spelled_out("<think>Hello") and "<think>Hello" not in anything
    assert "<think>Hm.</think>" in anything


def test_marks_of_gemma_4(tmp_path_factory: pytest.TempPathFactory) -> None:
    for marks in (("<|channel>", "<channel|>"), ()):
        vocabulary = Vocabulary(tmp_path_factory.mktemp("gemma"), marks)
        style = OutputFormat(reasoning=True, marks="gemma4", special_markers=vocabulary.marks)
        asked = Grammar.choice(["no"])
        possible = Language(vocabulary, Grammar(asked.kind, asked.text, "x", style.thought_rules("reasoning")))
        for text in ("no", "<|channel>thought\nHm {.\n<channel|>no", "<|channel>thought\n<channel|>no"):
            assert text in possible
        for text in ("<|channel>thought\nHm.", "<|channel>note\nHm.<channel|>no", "thought<channel|>no"):
            assert text not in possible
