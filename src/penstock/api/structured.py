"""What a request says its output must look like: the fields of OpenAI's API and of vLLM's."""

import json
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from penstock.core.errors import InvalidParameter
from penstock.core.grammar import Grammar
from penstock.text.schema.enforceable import enforceable

# Each takes the value of a field and the field's name.
_CONSTRAINTS: dict[str, Callable[[Any, str], Grammar]] = {
    "json": Grammar.json_schema,
    "regex": Grammar.regex,
    "choice": Grammar.choice,
    "grammar": Grammar.ebnf,
}
_SCHEMA_FIELDS = frozenset({"name", "description", "schema", "strict"})


def grammar_of(
    response_format: dict[str, Any] | None, structured_outputs: dict[str, Any] | None, guided: dict[str, Any]
) -> Grammar | None:
    """The one grammar that a request asks for, None where its output is free.

    Args:
        response_format: OpenAI's field.
        structured_outputs: vLLM's, an object with one of json, json_object, regex, choice and grammar.
        guided: its older fields, by their names: guided_json, guided_regex, guided_choice, guided_grammar.

    Raises InvalidParameter where there is more than one, or one that cannot be.
    """
    found = [_response_format(response_format), _structured_outputs(structured_outputs)]
    for name, value in guided.items():
        if value is not None:
            found.append(_CONSTRAINTS[name.removeprefix("guided_")](value, name))
    grammars = [grammar for grammar in found if grammar is not None]
    if len(grammars) > 1:
        names = " and ".join(grammar.param.partition(".")[0] for grammar in grammars)
        raise InvalidParameter(grammars[1].param, f"only one of {names} can be asked for.")
    return grammars[0] if grammars else None


def _response_format(value: dict[str, Any] | None) -> Grammar | None:
    name = "response_format"
    if value is None:
        return None
    kind = value.get("type")
    allowed = {"type", "json_schema"} if kind == "json_schema" else {"type"}
    for other in value:
        if other not in allowed:
            raise InvalidParameter(f"{name}.{other[:40]}", "is not a field of it; leave it out.")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar.json_object(name)
    if kind == "json_schema":
        return _json_schema(value.get("json_schema"), f"{name}.json_schema")
    raise InvalidParameter(f"{name}.type", f"{str(kind)[:40]!r} is not one of text, json_object, json_schema.")


def _json_schema(value: Any, name: str) -> Grammar:
    """What of the schema cannot be enforced is refused where it is strict, else told."""
    if not isinstance(value, dict):
        raise InvalidParameter(name, "must be an object with the fields name and schema.")
    for other in value:
        if other not in _SCHEMA_FIELDS:
            raise InvalidParameter(f"{name}.{other[:40]}", "is not a field of it; leave it out.")
    for field, kind, meaning in (
        ("name", str, "a string"),
        ("description", str, "a string"),
        ("strict", bool, "a boolean"),
    ):
        if value.get(field) is not None and not isinstance(value[field], kind):
            raise InvalidParameter(f"{name}.{field}", f"must be {meaning}.")
    if value.get("schema") is None:
        raise InvalidParameter(f"{name}.schema", "is missing.")
    grammar = Grammar.json_schema(value["schema"], f"{name}.schema")
    if value.get("strict"):
        return grammar
    schema, unenforced = enforceable(json.loads(grammar.text))
    if not unenforced:
        return grammar
    told = tuple(grammar.param + each.field for each in unenforced)
    return replace(Grammar.json_schema(schema, grammar.param), unenforced=told)


def _structured_outputs(value: dict[str, Any] | None) -> Grammar | None:
    name = "structured_outputs"
    given = {key: each for key, each in (value or {}).items() if each is not None}
    for key in given:
        if key not in _CONSTRAINTS and key != "json_object":
            accepted = ", ".join((*_CONSTRAINTS, "json_object"))
            raise InvalidParameter(f"{name}.{key[:40]}", f"is not supported; there are {accepted}.")
    if given.get("json_object") is False:
        del given["json_object"]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidParameter(name, f"has {' and '.join(given)}; only one can be asked for.")
    ((key, content),) = given.items()
    if key == "json_object":
        if content is not True:
            raise InvalidParameter(f"{name}.json_object", "must be true.")
        return Grammar.json_object(f"{name}.json_object")
    return _CONSTRAINTS[key](content, f"{name}.{key}")
