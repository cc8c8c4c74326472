"""Grammars of calls whose parameters are written one by one: what is accepted fits the schema as it is read."""

import json
import random
from typing import Any

import jsonschema
import pytest

from penstock.core.errors import InvalidParameter
from penstock.core.grammar import Grammar
from penstock.text.calls.grammar import Enforced, calls_grammar
from penstock.text.calls.parameters import ToolSchema, texts_of
from penstock.text.output_format import Parsing
from penstock.text.schema.enforceable import enforceable
from penstock.text.schema.patterns import fits_nothing
from support.language import Language, Vocabulary
from support.pieces import parsed
from support.schemas import any_schema

MARKS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|python_start|>")
MARKS += ("<|python_end|>", "<|tool_call>", "<tool_call|>", '<|"|>')
FORMATS = ("qwen3_coder", "glm45", "pythonic", "gemma4")
TOOLS = [
    ToolSchema(
        "paint",
        {
            "properties": {
                "name": {"type": "string", "maxLength": 9},
                "colour": {"$ref": "#/$defs/colour"},
                "coats": {"type": "integer", "minimum": 1, "maximum": 3},
                "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
                "dry": {"type": "boolean"},
                "sizes": {"type": "array", "items": {"$ref": "#/$defs/size"}, "maxItems": 2},
            },
            "required": ["name", "colour", "dry"],
            "additionalProperties": False,
            "$defs": {"colour": {"enum": ["red", "grün"]}, "size": {"enum": [1, "x</parameter></arg_value>"]}},
        },
        strict=True,
    ),
    ToolSchema("stop", {"type": "object", "properties": {}, "additionalProperties": False}),
    ToolSchema("wait", {"properties": {"seconds": {"type": "integer"}}}),
]
TEXTS = {tool.name: texts_of(tool) for tool in TOOLS}


@pytest.fixture(scope="module", params=["special", "text"])
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """With marks that are special tokens, or text."""
    return Vocabulary(tmp_path_factory.mktemp("marks"), MARKS if request.param == "special" else ())


def language(vocabulary: Vocabulary, calls: str, *arguments: Any, tools: list[ToolSchema] = TOOLS) -> Language:
    text = calls_grammar(calls, tools, *arguments, special_markers=vocabulary.marks).text
    return Language(vocabulary, Grammar("lark", text, "tools"))


def written(calls: str, *each: tuple[str, dict[str, str]]) -> str:
    """Calls as a model writes them, the values as they are given."""
    texts = []
    for name, values in each:
        pairs = values.items()
        if calls == "pythonic":
            texts.append(f"{name}({', '.join(f'{key}={value}' for key, value in pairs)})")
        elif calls == "gemma4":
            inner = ",".join(f"{key}:{value}" for key, value in pairs)
            texts.append(f"<|tool_call>call:{name}{{{inner}}}<tool_call|>")
        elif calls == "qwen3_coder":
            inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs)
            texts.append(f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>")
        else:
            inner = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in pairs)
            texts.append(f"<tool_call>{name}\n{inner}</tool_call>")
    if calls == "pythonic":
        return f"[{', '.join(texts)}]"
    return ("" if calls == "gemma4" else "\n").join(texts)


def quoted(calls: str, **texts: str) -> dict[str, str]:
    quote = {"pythonic": '"', "gemma4": '<|"|>'}.get(calls, "")
    return {key: f"{quote}{text}{quote}" for key, text in texts.items()}


def paint(calls: str, **others: str) -> tuple[str, dict[str, str]]:
    true = "True" if calls == "pythonic" else "true"
    first, last = quoted(calls, name="Fence", colour="red"), {"dry": true}
    order = ("name", "colour", "coats", "note", "dry", "sizes")
    arguments = {**first, **last, **others}
    return "paint", {key: arguments[key] for key in order if key in arguments}


@pytest.mark.parametrize("calls", FORMATS)
def test_required_calls(vocabulary: Vocabulary, calls: str) -> None:
    several, single = language(vocabulary, calls, "required", True), language(vocabulary, calls, "required", False)
    # Tags in a string do not end it, except where they are special tokens.
    sizes = "[1]" if vocabulary.marks else '[1, "x</parameter></arg_value>"]'
    good = [
        paint(calls),
        paint(calls, coats="2", sizes=sizes),
        paint(calls, **quoted(calls, note="a b")),
        paint(calls, note="null"),
        paint(calls, **quoted(calls, colour="grün", name="")),
        ("stop", {}),
        ("wait", {"seconds": "5"}),
        ("wait", {}),
    ]
    for each in good:
        assert written(calls, each) in several and written(calls, each) in single, written(calls, each)
    assert written(calls, *good) in several and written(calls, *good) not in single
    bad = [
        paint(calls, coats="4"),
        paint(calls, **quoted(calls, colour="blue")),
        paint(calls, **quoted(calls, name="Fence and gate")),
        paint(calls, dry='"yes"'),
        ("paint", {"dry": "true"}),
        ("stop", {"x": "1"}),
        ("wait", {"seconds": '"5"'}),
        ("other", {}),
    ]
    for each in bad:
        assert written(calls, each) not in several, written(calls, each)
    for text in ("", "Hello", f"Hello {written(calls, good[0])}", written(calls, good[0])[:-1]):
        assert text not in several


@pytest.mark.parametrize("calls", FORMATS)
def test_strict_calls_among_text(vocabulary: Vocabulary, calls: str) -> None:
    strict = language(vocabulary, calls, "strict", True)
    good, bad = written(calls, paint(calls)), written(calls, paint(calls, coats="4"))
    for text in ("", "Hello <b>you</b> {x}.", good):
        assert text in strict
    assert bad not in strict and not strict.spelled_out(bad)
    if calls == "pythonic":
        assert f"<|python_start|>{good}<|python_end|>" in strict
    else:
        assert f"Let me see.\n{good}\nSo." in strict and f"Let me see.\n{bad}" not in strict


@pytest.mark.parametrize("enforced", ["required", "strict"])
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("calls", FORMATS)
def test_all_that_is_accepted_is_read(vocabulary: Vocabulary, calls: str, parallel: bool, enforced: Enforced) -> None:
    accepted = language(vocabulary, calls, enforced, parallel)
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    chance = random.Random(f"{calls} {parallel}")
    complete = 0
    for _ in range(16):
        text = accepted.example(chance, 500 if enforced == "required" else 40)
        if text is None:
            continue
        complete += 1
        found = parsed(Parsing(calls=calls, texts=TEXTS).parser(), [text])
        for name, arguments in found["calls"]:
            jsonschema.validate(json.loads(arguments), schemas[name])
        if enforced == "required":
            assert found["content"] == "" and len(found["calls"]) >= 1 and (parallel or len(found["calls"]) == 1), text
    assert complete >= 6 or enforced == "strict"


@pytest.mark.parametrize("calls", ["qwen3_coder", "glm45", "gemma4"])
def test_any_text_as_a_value(vocabulary: Vocabulary, calls: str) -> None:
    tools = [ToolSchema("f", {"properties": {"a": {"type": "string"}}, "required": ["a"]})]
    accepted = language(vocabulary, calls, "required", True, tools=tools)
    for value in ("", "5", "one\n\ntwo\n", '"</function> <tool_', "a < b {", "Ü" * 50):
        text = written(calls, ("f", quoted(calls, a=value)))
        assert text in accepted
        found = parsed(Parsing(calls=calls, texts={"f": {"a": False}}).parser(), [text])
        assert [json.loads(arguments) for _, arguments in found["calls"]] == [{"a": value}]
    # A tag that is spelled out ends the value for whoever reads it, even where it is a special token.
    closer = {"qwen3_coder": "</parameter>", "glm45": "</arg_value>", "gemma4": '<|"|>'}[calls]
    assert not accepted.spelled_out(written(calls, ("f", quoted(calls, a=f"x{closer}y"))))


@pytest.mark.parametrize(
    ("calls", "parameters", "why"),
    [
        (
            "qwen3_coder",
            {"properties": {"a": {"type": "string", "pattern": "x"}}},
            "keyword 'pattern' of the property 'a'",
        ),
        (
            "glm45",
            {"properties": {"a": {"type": "string", "const": "y", "not": {}}}},
            "keyword 'not' of the property 'a'",
        ),
        ("pythonic", {"properties": {}, "minProperties": 1}, "'minProperties' beside"),
        ("glm45", {"properties": {}, "required": ["a"]}, "'a' is required"),
    ],
)
def test_what_cannot_be_enforced_is_refused_where_calls_are_strict(
    calls: str, parameters: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidParameter, match=f"of the tool 'f', .*{why}.* cannot be enforced") as caught:
        calls_grammar(calls, [ToolSchema("f", parameters, True, "tools[3].function.parameters")], "strict", True)
    assert caught.value.param == "tools[3].function.parameters"


@pytest.mark.parametrize(
    ("calls", "parameters", "why"),
    [
        (
            "pythonic",
            {"properties": {"a b": {}}, "required": ["a b"]},
            "the name of the parameter 'a b' cannot be written",
        ),
        ("qwen3_coder", {"properties": {"a": {"enum": ["</parameter>"]}}}, "the values of 'a' cannot be written"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_what_cannot_be_written_is_refused(calls: str, parameters: dict[str, Any], why: str, strict: bool) -> None:
    with pytest.raises(InvalidParameter, match=why):
        calls_grammar(calls, [ToolSchema("f", parameters, strict)], "required", True)


@pytest.mark.parametrize("calls", FORMATS)
def test_parameters_that_refer_to_much_are_refused_before_they_are_compiled(calls: str) -> None:
    properties = {f"p{index}": {"$ref": "#/properties/p0"} for index in range(2000)}
    with pytest.raises(
        InvalidParameter, match="of the tool 'f', the schemas of all parameters, .* are more than 262144"
    ):
        calls_grammar(calls, [ToolSchema("f", {"properties": properties})], "required", True)


def test_what_cannot_be_enforced_is_passed_over_otherwise(vocabulary: Vocabulary) -> None:
    parameters = {"properties": {"a": {"type": "string", "pattern": "x"}, "b c": {}}, "minProperties": 1}
    for calls in FORMATS:
        accepted = language(vocabulary, calls, "required", True, tools=[ToolSchema("f", parameters)])
        assert written(calls, ("f", {})) in accepted
        told = calls_grammar(calls, [ToolSchema("f", parameters, False, "tools[0]")], "required", True).unenforced
        if calls != "pythonic":
            assert written(calls, ("f", quoted(calls, a="y"))) in accepted
            assert told == ("tools[0].minProperties", "tools[0].properties.a.pattern")
        else:
            assert told == ("tools[0].minProperties",)


def test_forms_of_texts_are_remarks_where_values_are_no_json(vocabulary: Vocabulary) -> None:
    parameters = {"properties": {"a": {"type": "string", "format": "date"}}, "required": ["a"]}
    accepted = language(vocabulary, "glm45", "required", True, tools=[ToolSchema("f", parameters, strict=True)])
    assert written("glm45", ("f", {"a": "soon"})) in accepted


@pytest.mark.parametrize("calls", FORMATS)
def test_calls_fit_whatever_the_schema(vocabulary: Vocabulary, calls: str) -> None:
    """But for what is told."""
    complete = 0
    for seed in range(16):
        properties = {name: any_schema(seed + place) for place, name in ((0, "a"), (100, "b-c"))}
        definitions = {name: each for schema in properties.values() for name, each in schema.pop("$defs", {}).items()}
        schema = {"type": "object", "properties": properties, "required": ["a"], "$defs": definitions}
        tool = ToolSchema("f", schema)
        if fits_nothing(enforceable(schema)[0]):
            continue
        accepted = language(vocabulary, calls, "required", False, tools=[tool])
        text = accepted.example(random.Random(seed), 400)
        if text is not None:
            complete += 1
            pieces = parsed(Parsing(calls=calls, texts={"f": texts_of(tool)}).parser(), [text])
            ((name, arguments),) = pieces["calls"]
            assert name == "f" and pieces["content"] == ""
            if not calls_grammar(calls, [tool], "required", False).unenforced:
                jsonschema.validate(json.loads(arguments), schema)
    assert complete >= 6
