"""Grammars of calls: they accept what models write, nothing else, and the parsers read all that they accept."""

import json
import random
from typing import Any

import jsonschema
import pytest

from penstock.core.errors import InvalidParameter
from penstock.core.grammar import Grammar
from penstock.text.calls.grammar import MAX_CALLS, Enforced, ToolSchema, calls_grammar
from penstock.text.calls.parameters import texts_of
from penstock.text.output_format import Parsing
from penstock.text.reasoning import Before, thought_rules
from support.language import Language, Vocabulary
from support.pieces import parsed
from support.schemas import AS_CLIENTS_SEND_THEM

MARKS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<think>", "</think>")
FORMATS = [("hermes", False), ("llama3", False), ("mistral", False), ("mistral", True)]
TOOLS = [
    ToolSchema(
        "paint",
        {
            "properties": {
                "colour": {"$ref": "#/$defs/colour"},
                "coats": {"type": "integer", "minimum": 1, "maximum": 3},
            },
            "required": ["colour"],
            "additionalProperties": False,
            "$defs": {"colour": {"enum": ["red", "green"]}},
        },
        strict=True,
    ),
    ToolSchema("stop", {"type": "object", "properties": {}, "additionalProperties": False}),
]


@pytest.fixture(scope="module", params=["special", "text"])
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """With marks that are special tokens, or text."""
    return Vocabulary(tmp_path_factory.mktemp("marks"), MARKS if request.param == "special" else ())


def language(vocabulary: Vocabulary, *arguments: Any, before: Before = "nothing", **options: Any) -> Language:
    """What the grammar of calls with these arguments accepts."""
    text = calls_grammar(*arguments, special_markers=vocabulary.marks, **options).text
    return Language(vocabulary, Grammar("lark", text, "tools", thought_rules(before, vocabulary.marks)))


def one(calls: str, name: str, arguments: str, by_name: bool) -> str:
    if by_name:
        return f"[TOOL_CALLS]{name}[ARGS]{arguments}"
    key = "parameters" if calls == "llama3" else "arguments"
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def written(calls: str, by_name: bool, *each: tuple[str, str]) -> str:
    """Calls as a model writes them."""
    objects = [one(calls, name, arguments, by_name) for name, arguments in each]
    if calls == "hermes":
        return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects)
    if calls == "llama3":
        return "; ".join(objects)
    return "".join(objects) if by_name else f"[TOOL_CALLS][{', '.join(objects)}]"


MARK = {"hermes": "<tool_call>", "llama3": "<|python_tag|>", "mistral": "[TOOL_CALLS]"}
RED, STOP = ("paint", '{"colour": "red", "coats": 2}'), ("stop", "{}")


@pytest.mark.parametrize(("calls", "by_name"), FORMATS)
def test_required_calls(vocabulary: Vocabulary, calls: str, by_name: bool) -> None:
    several = language(vocabulary, calls, TOOLS, "required", True, by_name=by_name)
    single = language(vocabulary, calls, TOOLS, "required", False, by_name=by_name)
    for each in (RED, STOP, ("paint", '{"colour":"green"}'), ("paint", '{\n  "colour": "green"\n}')):
        assert written(calls, by_name, each) in several and written(calls, by_name, each) in single
    assert written(calls, by_name, RED, STOP, RED) in several
    assert written(calls, by_name, RED, STOP) not in single
    for each in (("paint", "{}"), ("paint", '{"colour": "blue"}'), ("paint", '{"colour": "red", "coats": 4}')):
        assert written(calls, by_name, each) not in several
    for each in (("stop", '{"x": 1}'), ("paint", "[]"), ("other", "{}"), ("paint", '{"colour": "red", "more": 1}')):
        assert written(calls, by_name, each) not in several
    for text in ("", "Hello", "Hello " + written(calls, by_name, RED), written(calls, by_name, RED)[:-1]):
        assert text not in several
    assert written(calls, by_name, RED) + " Hello" not in several


@pytest.mark.parametrize(("calls", "by_name"), FORMATS)
def test_strict_calls_among_text(vocabulary: Vocabulary, calls: str, by_name: bool) -> None:
    accepted = language(vocabulary, calls, TOOLS, "strict", True, by_name=by_name)
    good, bad = written(calls, by_name, RED, STOP), written(calls, by_name, ("paint", '{"colour": "blue"}'))
    for text in ("", "Hello <b>you</b> {x}.", good):
        assert text in accepted
    assert bad not in accepted and not accepted.spelled_out(bad)
    assert not accepted.spelled_out(f"Well. {MARK[calls]}{bad}")
    if calls != "llama3":
        assert f"Let me see.\n{good}\nSo." in accepted
        assert f"Let me see.\n{bad}" not in accepted
    else:
        assert f"<|python_tag|>{good}" in accepted


@pytest.mark.parametrize(("calls", "by_name"), FORMATS)
def test_reasoning_before_calls(vocabulary: Vocabulary, calls: str, by_name: bool) -> None:
    good = written(calls, by_name, RED)

    possible, opened = (
        language(vocabulary, calls, TOOLS, "required", True, by_name=by_name, before=before)
        for before in ("reasoning", "open reasoning")
    )
    assert good in possible and f"<think>\nHm {{.\n</think>\n\n{good}" in possible
    assert f"<think>Hm.</think>Well. {good}" not in possible and f"Hm.</think>{good}" not in possible
    assert f"Hm.\n</think>\n\n{good}" in opened and good not in opened


@pytest.mark.parametrize("enforced", ["required", "strict"])
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(("calls", "by_name"), FORMATS)
def test_all_that_is_accepted_is_read(
    vocabulary: Vocabulary, calls: str, by_name: bool, parallel: bool, enforced: Enforced
) -> None:
    accepted = language(vocabulary, calls, TOOLS, enforced, parallel, by_name=by_name)
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    chance = random.Random(f"{calls} {by_name} {parallel}")
    # Among text, a call would hardly begin at random, and Llama's stand alone.
    begun = ("" if calls == "llama3" else "Hello. ") + written(calls, by_name, RED).partition(RED[1])[0]
    complete = 0
    for _ in range(12):
        text = accepted.example(chance, 400, "" if enforced == "required" else begun)
        if text is None:
            continue
        complete += 1
        found = parsed(Parsing(calls=calls).parser(), [text])
        for name, arguments in found["calls"]:
            jsonschema.validate(json.loads(arguments), schemas[name])
        assert found["calls"], text
        if enforced == "required":
            assert found["content"] == "" and (parallel or len(found["calls"]) == 1), text
    assert complete >= 6


def test_what_cannot_be_enforced_is_passed_over_unless_strict(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}
    call = written("hermes", False, ("f", '{"a": [1, 1]}'))
    assert call in language(vocabulary, "hermes", [ToolSchema("f", schema)], "required", True)
    with pytest.raises(
        InvalidParameter, match=r"tools: of the tool 'f', the keyword 'uniqueItems' of the property 'a'"
    ):
        language(vocabulary, "hermes", [ToolSchema("f", schema, strict=True)], "required", True)


def test_remarks_in_schemas_are_left_out_and_names_are_not(vocabulary: Vocabulary) -> None:
    schema = {
        "description": ":(" * 100,
        "properties": {"title": {"const": {"title": ":)"}, "title": "x"}, "default": {"type": "null", "default": "("}},
        "required": ["title", "default"],
        "additionalProperties": False,
    }
    accepted = language(vocabulary, "hermes", [ToolSchema("f", schema, strict=True)], "required", True)
    assert written("hermes", False, ("f", '{"title": {"title": ":)"}, "default": null}')) in accepted
    assert written("hermes", False, ("f", '{"title": {}, "default": null}')) not in accepted
    assert ":(" not in calls_grammar("hermes", [ToolSchema("f", schema)], "required", True).text


@pytest.mark.parametrize(("calls", "by_name"), FORMATS)
@pytest.mark.parametrize("enforced", ["required", "strict"])
def test_one_answer_has_a_bounded_number_of_calls(
    vocabulary: Vocabulary, calls: str, by_name: bool, enforced: Enforced
) -> None:
    accepted = language(vocabulary, calls, TOOLS, enforced, True, by_name=by_name)
    assert written(calls, by_name, *[STOP] * MAX_CALLS) in accepted
    assert written(calls, by_name, *[STOP] * (MAX_CALLS + 1)) not in accepted


@pytest.mark.parametrize(("calls", "by_name"), FORMATS)
def test_names_with_dots_and_names_that_others_begin_with(vocabulary: Vocabulary, calls: str, by_name: bool) -> None:
    one = {"properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    other = {"properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": False}
    names = ["get", "get.more", "get.more-of_it", "mcp__server__" + "x" * 115]
    tools = [ToolSchema(name, other if index % 2 else one) for index, name in enumerate(names)]
    accepted = language(vocabulary, calls, tools, "required", True, by_name=by_name)
    for index, name in enumerate(names):
        good, bad = ('{"a": null}', '{"a": 1}')[:: 1 if index % 2 else -1]
        assert written(calls, by_name, (name, good)) in accepted
        assert written(calls, by_name, (name, bad)) not in accepted


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("calls", "by_name"), [*FORMATS, ("qwen3_coder", False), ("glm45", False), ("pythonic", False)]
)
def test_tools_as_clients_send_them(vocabulary: Vocabulary, calls: str, by_name: bool, strict: bool) -> None:
    """In every format they can be called, and the calls fit; what a format has no room for is told."""
    by_parameter = calls in ("qwen3_coder", "glm45", "pythonic")
    complete = 0
    for index, function in enumerate(AS_CLIENTS_SEND_THEM):
        schema = function.get("parameters") or {}
        tool = ToolSchema(f"get.more-{index}", schema, strict and not ("patternProperties" in schema and by_parameter))
        found = calls_grammar(calls, [tool], "required", False, special_markers=vocabulary.marks, by_name=by_name)
        assert bool(found.unenforced) == (by_parameter and not tool.strict and "patternProperties" in schema)
        accepted = Language(vocabulary, Grammar("lark", found.text, "tools"))
        for turn in range(3):
            text = accepted.example(random.Random(f"{index} {turn}"), 300)
            if text is not None:
                complete += 1
                pieces = parsed(Parsing(calls=calls, texts={tool.name: texts_of(tool)}).parser(), [text])
                ((name, arguments),) = pieces["calls"]
                assert name == tool.name and pieces["content"] == ""
                if not found.unenforced:
                    jsonschema.validate(json.loads(arguments), schema)
    assert complete >= 9
