"""Which of a tool's parameters are text."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from penstock.text.calls.parameters import ToolSchema, parameters_of, texts_of
from penstock.text.schema.enforceable import enforceable


@pytest.mark.parametrize(
    ("schema", "nullable"),
    [
        ({"type": "string"}, False),
        ({"type": ["string"], "description": "x"}, False),
        ({"type": ["string", "null"]}, True),
        ({"enum": ["a", "b"]}, False),
        ({"type": "string", "nullable": True, "x-order": 1}, False),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "nullable": True, "x-order": 1}, True),
        ({"type": "string", "pattern": "(?=a)"}, False),
        ({"const": "a"}, False),
        ({"$ref": "#/$defs/name"}, False),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, True),
        ({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/name"}]}, True),
        ({"type": "integer"}, None),
        ({"type": ["string", "integer"]}, None),
        ({"type": ["string", {}]}, None),
        ({"enum": ["a", 1]}, None),
        ({"enum": []}, None),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, None),
        ({"anyOf": [{"type": "string"}, True]}, None),
        ({"anyOf": [{"type": "string"}], "type": "object"}, None),
        ({"$ref": "#/$defs/itself"}, None),
        ({"$ref": "#/$defs/missing"}, None),
        ({"$ref": "https://example.com/x"}, None),
        ({}, None),
        (True, None),
        (False, None),
    ],
)
def test_what_is_text(schema: Any, nullable: bool | None) -> None:
    definitions = {"name": {"type": "string"}, "itself": {"$ref": "#/$defs/itself"}}
    tool = ToolSchema("f", {"properties": {"a": schema}, "required": ["a"], "$defs": definitions})
    assert texts_of(tool) == ({} if nullable is None else {"a": nullable})
    (parameter,) = parameters_of(tool)
    assert parameter.required and parameter.schema["$defs"] == definitions and not parameter.is_boolean


def test_a_parameter_may_refer_to_the_whole_and_to_others() -> None:
    number = {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/none"}]}
    properties = {"n": number, "inner": {"$ref": "#"}, "same": {"type": "array", "items": {"$ref": "#/properties/n"}}}
    root = {"type": "object", "properties": properties, "$defs": {"none": {"const": {"$ref": "#"}}}}
    n, inner, same = (each.schema for each in parameters_of(ToolSchema("f", root)))
    assert n == {**number, "$defs": root["$defs"]}
    for value, fits in (
        ({"n": 1, "inner": {"n": 2}}, True),
        ({"inner": {"n": "x"}}, False),
        ({"n": {"$ref": "#"}}, True),
    ):
        assert Draft202012Validator(inner).is_valid(value) == fits
        assert Draft202012Validator(root).is_valid(value) == fits
    assert Draft202012Validator(same).is_valid([1, {"$ref": "#"}]) and not Draft202012Validator(same).is_valid(["x"])
    assert enforceable(inner) == (inner, ()) and enforceable(same) == (same, ())


def test_parameters_that_refer_to_the_whole_share_it() -> None:
    """A copy each would take gigabytes of memory for a request of a few hundred kilobytes."""
    properties = {f"p{index}": {"$ref": "#/properties/p0"} for index in range(2000)}
    found = parameters_of(ToolSchema("f", {"type": "object", "properties": properties}))
    assert len({id(each.schema["$defs"]) for each in found}) == 1 and len(found) == 2000


def test_a_tool_without_parameters_has_none() -> None:
    assert parameters_of(ToolSchema("f", {})) == []
