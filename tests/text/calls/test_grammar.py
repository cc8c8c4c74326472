"""Grammars of calls: they accept what models write, nothing else, and the parsers read all that they accept."""

import json
import random
from typing import Any

import jsonschema
import pytest
from tokenizers import AddedToken

from penstock.core.errors import InvalidParameter
from penstock.core.grammar import Grammar
from penstock.sampling.grammar import Grammars
from penstock.text.calls.grammar import Before, Enforced, ToolSchema, calls_grammar
from penstock.text.output_format import Parsing
from penstock.text.tokenizer import Tokenizer, load_tokenizer
from support.pieces import parsed
from support.tokenizers_made import make_raw, save

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
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """With marks that are special tokens, or text."""
    raw: Any = make_raw("byte_level")
    if request.param == "special":
        raw.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    return load_tokenizer(save(raw, tmp_path_factory.mktemp("marks")))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer.table, tokenizer.vocab_size, (tokenizer.token_id("</s>") or 0,))


def special(tokenizer: Tokenizer) -> dict[str, int]:
    ids = {mark: tokenizer.token_id(mark) for mark in MARKS}
    return {mark: index for mark, index in ids.items() if index is not None and tokenizer.table.special[index]}


class Language:
    """The outputs that a grammar accepts."""

    def __init__(self, tokenizer: Tokenizer, grammars: Grammars, *arguments: Any, **options: Any) -> None:
        text = calls_grammar(*arguments, special_markers=special(tokenizer), **options)
        self._tokenizer = tokenizer
        self._end = tokenizer.token_id("</s>") or 0
        self._grammar = Grammar("lark", text, "tools")
        self._grammars = grammars

    def __contains__(self, text: object) -> bool:
        tokens = [*self._tokenizer.encode(str(text), False), self._end]
        return self._matcher().validate_tokens(tokens) == len(tokens)

    def spelled_out(self, text: str) -> bool:
        """Whether it accepts a text whose marks are no special tokens, even where there are such."""
        marked = self._tokenizer.mark_special(text, "\ufdd0")
        tokens = [*self._tokenizer.encode_marked(marked, "\ufdd0"), self._end]
        return self._matcher().validate_tokens(tokens) == len(tokens)

    def example(self, chance: random.Random, most_tokens: int = 400) -> str | None:
        """An output drawn at random; None where it does not come to an end."""
        matcher, tokens = self._matcher(), []
        for _ in range(most_tokens):
            mask = matcher.compute_bitmask()
            allowed = [index for index in range(self._tokenizer.vocab_size) if mask[index // 8] >> index % 8 & 1]
            token = self._end if self._end in allowed and chance.random() < 0.5 else chance.choice(allowed)
            if token == self._end:
                return self._tokenizer.decode(tokens, skip_special=False)
            tokens.append(token)
            assert matcher.consume_token(token), matcher.get_error()
            if matcher.is_stopped():
                return self._tokenizer.decode(tokens, skip_special=False)
        return None

    def _matcher(self) -> Any:
        return self._grammars.matcher(self._grammar).raw


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
def test_required_calls(tokenizer: Tokenizer, grammars: Grammars, calls: str, by_name: bool) -> None:
    several = Language(tokenizer, grammars, calls, TOOLS, "required", True, by_name=by_name)
    single = Language(tokenizer, grammars, calls, TOOLS, "required", False, by_name=by_name)
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
def test_strict_calls_among_text(tokenizer: Tokenizer, grammars: Grammars, calls: str, by_name: bool) -> None:
    language = Language(tokenizer, grammars, calls, TOOLS, "strict", True, by_name=by_name)
    good, bad = written(calls, by_name, RED, STOP), written(calls, by_name, ("paint", '{"colour": "blue"}'))
    for text in ("", "Hello <b>you</b> {x}.", good):
        assert text in language
    assert bad not in language and not language.spelled_out(bad)
    assert not language.spelled_out(f"Well. {MARK[calls]}{bad}")
    if calls != "llama3":
        assert f"Let me see.\n{good}\nSo." in language
        assert f"Let me see.\n{bad}" not in language
    else:
        assert f"<|python_tag|>{good}" in language


@pytest.mark.parametrize(("calls", "by_name"), FORMATS)
def test_reasoning_before_calls(tokenizer: Tokenizer, grammars: Grammars, calls: str, by_name: bool) -> None:
    good = written(calls, by_name, RED)

    def language(before: Before) -> Language:
        return Language(tokenizer, grammars, calls, TOOLS, "required", True, by_name=by_name, before=before)

    possible, opened = language("reasoning"), language("open reasoning")
    assert good in possible and f"<think>\nHm {{.\n</think>\n\n{good}" in possible
    assert f"<think>Hm.</think>Well. {good}" not in possible and f"Hm.</think>{good}" not in possible
    assert f"Hm.\n</think>\n\n{good}" in opened and good not in opened


@pytest.mark.parametrize("enforced", ["required", "strict"])
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(("calls", "by_name"), FORMATS)
def test_all_that_is_accepted_is_read(
    tokenizer: Tokenizer, grammars: Grammars, calls: str, by_name: bool, parallel: bool, enforced: Enforced
) -> None:
    language = Language(tokenizer, grammars, calls, TOOLS, enforced, parallel, by_name=by_name)
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    chance = random.Random(f"{calls} {by_name} {parallel}")
    complete = 0
    for _ in range(12):
        text = language.example(chance, 400 if enforced == "required" else 40)
        if text is None:
            continue
        complete += 1
        found = parsed(Parsing(calls=calls).parser(), [text])
        for name, arguments in found["calls"]:
            jsonschema.validate(json.loads(arguments), schemas[name])
        if enforced == "required":
            assert found["content"] == "" and len(found["calls"]) >= 1 and (parallel or len(found["calls"]) == 1), text
    assert complete >= 6 or enforced == "strict"


def test_what_cannot_be_enforced_is_passed_over_unless_strict(tokenizer: Tokenizer, grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}
    call = written("hermes", False, ("f", '{"a": [1, 1]}'))
    assert call in Language(tokenizer, grammars, "hermes", [ToolSchema("f", schema)], "required", True)
    with pytest.raises(InvalidParameter, match=r"tools: .*uniqueItems"):
        "" in Language(tokenizer, grammars, "hermes", [ToolSchema("f", schema, strict=True)], "required", True)  # noqa: B015


def test_remarks_in_schemas_are_left_out_and_names_are_not(tokenizer: Tokenizer, grammars: Grammars) -> None:
    schema = {
        "description": ":(" * 100,
        "properties": {"title": {"const": {"title": ":)"}, "title": "x"}, "default": {"type": "null", "default": "("}},
        "required": ["title", "default"],
        "additionalProperties": False,
    }
    language = Language(tokenizer, grammars, "hermes", [ToolSchema("f", schema, strict=True)], "required", True)
    assert written("hermes", False, ("f", '{"title": {"title": ":)"}, "default": null}')) in language
    assert written("hermes", False, ("f", '{"title": {}, "default": null}')) not in language
    assert ":(" not in calls_grammar("hermes", [ToolSchema("f", schema)], "required", True)
