"""Fields that say what an output must look like: what reaches the engine, and what is refused by name."""

from typing import Any

import pytest

from penstock.core.grammar import Grammar

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["b"]}


def response_format(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, **fields}}


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"regex": None, "json_object": False}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar.json_object("response_format")),
        ({"response_format": response_format()}, Grammar.json_schema(SCHEMA, "response_format.json_schema.schema")),
        (
            {"response_format": response_format(strict=True, description="d")},
            Grammar.json_schema(SCHEMA, "response_format.json_schema.schema"),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, Grammar.json_schema(SCHEMA, "structured_outputs.json")),
        ({"structured_outputs": {"json_object": True}}, Grammar.json_object("structured_outputs.json_object")),
        ({"structured_outputs": {"regex": "a+"}}, Grammar.regex("a+", "structured_outputs.regex")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Grammar.choice(["a", "b"], "structured_outputs.choice")),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Grammar.ebnf('start: "a"', "structured_outputs.grammar")),
        ({"guided_json": SCHEMA}, Grammar.json_schema(SCHEMA, "guided_json")),
        ({"guided_regex": "a|b"}, Grammar.regex("a|b", "guided_regex")),
        ({"guided_choice": ["a"]}, Grammar.choice(["a"], "guided_choice")),
        ({"guided_grammar": 'root ::= "a"'}, Grammar.ebnf('root ::= "a"', "guided_grammar")),
    ],
)
def test_a_grammar_reaches_the_engine(served: Any, fields: dict[str, Any], grammar: Grammar | None) -> None:
    assert served.chat(**fields).status_code == 200
    assert served.complete(**fields).status_code == 200
    assert [call.params.grammar for call in served.engine.calls] == [grammar, grammar]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"response_format": response_format(schema=[])}, "response_format.json_schema.schema"),
        ({"response_format": response_format(strict="yes")}, "response_format.json_schema.strict"),
        ({"response_format": response_format(other=1)}, "response_format.json_schema.other"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": "(" * 65}, "guided_regex"),
        ({"guided_grammar": "start: " + "(" * 65}, "guided_grammar"),
        ({"guided_json": {"enum": list(range(30_000))}, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": response_format(), "guided_regex": "a"}, "guided_regex"),
    ],
)
def test_what_cannot_be_is_refused(served: Any, fields: dict[str, Any], param: str) -> None:
    answer = served.chat(**fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert not served.engine.calls


def test_a_schema_keeps_its_order(served: Any) -> None:
    served.chat(response_format=response_format())
    assert served.engine.calls[0].params.grammar.text.index('"b"') < served.engine.calls[0].params.grammar.text.index(
        '"a"'
    )
