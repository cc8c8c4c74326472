"""A tool's parameters one by one, for formats whose calls are not one JSON object."""

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.core.errors import InvalidParameter

# What a schema says to people.
REMARKS = frozenset(
    {"$comment", "$schema", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)
_DEFINITIONS = ("$defs", "definitions")
# What is enforced of a tool's schema where parameters are written one by one.
_ENFORCED = frozenset({"additionalProperties", "properties", "required", "type", *_DEFINITIONS, *REMARKS})
_MOST_REFERENCES = 16


class ToolSchema(msgspec.Struct, frozen=True):
    """A tool whose calls are enforced; unless it is `strict`, keywords that cannot be enforced are passed over."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a tool.

    Attributes:
        schema: what its values are like, with the definitions that it refers to.
        text: where all its values are strings, or null, what these strings are like; None otherwise.
        nullable: whether they may be null.
    """

    name: str
    schema: Mapping[str, Any]
    required: bool
    text: Mapping[str, Any] | None
    nullable: bool

    @property
    def is_boolean(self) -> bool:
        """Whether its values are true and false."""
        return self.schema.get("type") == "boolean" and self.schema.keys() <= {"type", *_DEFINITIONS, *REMARKS}


def parameters_of(tool: ToolSchema) -> list[Parameter]:
    """A tool's parameters, in the order of its schema."""
    root = tool.parameters
    definitions = {key: root[key] for key in _DEFINITIONS if key in root}
    required = root.get("required", [])
    found = []
    for name, schema in root.get("properties", {}).items():
        # A schema may be true, for anything.
        schema = schema if isinstance(schema, Mapping) else {} if schema is True else {"enum": []}
        text, nullable = _text_of(schema, root)
        found.append(Parameter(name, {**schema, **definitions}, name in required, text, nullable))
    return found


def texts_of(tool: ToolSchema) -> dict[str, bool]:
    """Those parameters whose values are text, and whether they may be null."""
    return {each.name: each.nullable for each in parameters_of(tool) if each.text is not None}


def check_enforceable(tool: ToolSchema) -> None:
    """Raise InvalidParameter where a strict tool's schema says what no format can that writes parameters one by one."""
    if not tool.strict:
        return
    for key in tool.parameters:
        if key not in _ENFORCED:
            raise cannot_be_enforced(tool, f"the keyword {key!r} beside its properties")
    for name in tool.parameters.get("required", []):
        if name not in tool.parameters.get("properties", {}):
            raise cannot_be_enforced(tool, f"that {name!r} is required, which is none of its properties,")


def cannot_be_enforced(tool: ToolSchema, what: str) -> InvalidParameter:
    """The refusal of what this model's format of calls has no room for."""
    return InvalidParameter("tools", f"of {tool.name!r}, {what} cannot be enforced in this model's format of calls.")


def _text_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, bool]:
    """Of a schema whose values are strings or null what the strings are like, and whether there is null."""
    schema = _resolved(schema, root)
    branches = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(branches, list) and not schema.keys() - REMARKS - {"anyOf", "oneOf"}:
        each = [_resolved(branch, root) for branch in branches if isinstance(branch, Mapping)]
        strings = [branch for branch in each if branch.get("type") != "null"]
        if len(each) != len(branches) or len(strings) != 1:
            return None, False
        text, nullable = _text_of(strings[0], {})
        return text, nullable or len(strings) < len(each)
    kinds = schema.get("type")
    if kinds is None:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        is_text = isinstance(values, list) and bool(values) and all(isinstance(value, str) for value in values)
        return (schema if is_text else None), False
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "string" not in kinds or any(kind not in ("string", "null") for kind in kinds):
        return None, False
    return schema, "null" in kinds


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference to a definition stands for, if it is nothing else."""
    for _ in range(_MOST_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or schema.keys() - REMARKS - {"$ref"}:
            break
        start, _, name = reference.removeprefix("#/").partition("/")
        definitions = root.get(start) if start in _DEFINITIONS else None
        target = definitions.get(name) if isinstance(definitions, Mapping) else None
        if not isinstance(target, Mapping):
            break
        schema = target
    return schema
