"""What a request may ask of its output: said in one sentence where it is not possible."""

import re

import pytest

from penstock.core.errors import InvalidParameter
from penstock.core.grammar import MAX_GRAMMAR_BYTES, MAX_GRAMMAR_DEPTH, Grammar
from penstock.core.sampling import SamplingParams


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def test_a_schema_is_kept_in_its_own_order() -> None:
    assert Grammar.json_schema({"b": 1, "a": "ü"}).text == '{"b": 1, "a": "ü"}'
    assert Grammar.json_schema('{"b": 1, "a": 2}') == Grammar.json_schema({"b": 1, "a": 2})
    assert Grammar.json_schema(True).text == "{}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Grammar.json_schema([1]), "must be an object"),
        (lambda: Grammar.json_schema(False), "must be an object"),
        (lambda: Grammar.json_schema("{"), "is not valid JSON"),
        (lambda: Grammar.json_schema("[" * 100_000), "is not valid JSON"),
        (lambda: Grammar.json_schema({"minimum": float("nan")}), "cannot be written as JSON"),
        (lambda: Grammar.json_schema({"a": {1, 2}}), "cannot be written as JSON"),
        (lambda: Grammar.json_schema({"const": "\ud800"}), "surrogate"),
        (lambda: Grammar.json_schema(nested(MAX_GRAMMAR_DEPTH + 1)), "more than 64 deep"),
        (lambda: Grammar.json_schema({"enum": list(range(100_000))}), "are more than the 262144"),
        (lambda: Grammar.regex("(" * 30_000), "more than 64 deep"),
        (lambda: Grammar.regex(""), "not empty"),
        (lambda: Grammar.ebnf("start: " + "(" * 30_000), "more than 64 deep"),
        (lambda: Grammar.ebnf("x" * (MAX_GRAMMAR_BYTES + 1)), "are more than"),
        (lambda: Grammar.choice([]), "list of strings"),
        (lambda: Grammar.choice(["a", ""]), "list of strings"),
        (lambda: Grammar.choice(["a"] * 2000), "2000 choices"),
        (lambda: Grammar.choice("abc"), "list of strings"),
        (lambda: Grammar.regex(5), "must be a string"),
    ],
)
def test_what_cannot_be_asked_for(make, message) -> None:
    with pytest.raises(InvalidParameter, match=message) as caught:
        make()
    assert caught.value.param == "grammar"


def test_options_of_the_compiler_are_not_the_clients() -> None:
    with pytest.raises(InvalidParameter, match="x-guidance"):
        Grammar.json_schema({"x-guidance": {"lenient": True}})


def test_a_schema_of_the_greatest_depth_is_accepted() -> None:
    assert Grammar.json_schema(nested(MAX_GRAMMAR_DEPTH - 1))


def test_brackets_that_are_escaped_do_not_nest() -> None:
    assert Grammar.regex(r"\(" * 200 + r"\)" * 200)


def test_choices_are_literal() -> None:
    texts = ["a.b", "<x>", "[1]", "a-b", "tab\t", "ü", "\\d"]
    expression = Grammar.choice([*texts, "a.b"]).text
    assert [bool(re.fullmatch(expression, text)) for text in texts] == [True] * len(texts)
    assert not re.fullmatch(expression, "axb")
    assert "\\<" not in expression, "a word boundary in Rust's syntax"


def test_gbnf_is_told_by_its_arrow() -> None:
    assert Grammar.ebnf('root ::= "a"').kind == "gbnf"
    assert Grammar.ebnf('start: "a"').kind == "lark"


def test_parameters_take_a_grammar_only() -> None:
    assert SamplingParams(grammar=Grammar.regex("a+")).grammar is not None
    with pytest.raises(InvalidParameter, match="must be a Grammar"):
        SamplingParams(grammar="a+")  # type: ignore[arg-type]
