"""A tool's parameters one by one, for formats whose calls are not one JSON object."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.text.schema.enforceable import enforceable
from penstock.text.schema.keywords import DEFINITIONS, REMARKS, VALUES

# What is enforced of a tool's schema where parameters are written one by one.
_ENFORCED = frozenset({"additionalProperties", "properties", "required", "type", *DEFINITIONS, *REMARKS})
_MOST_REFERENCES = 16
# What the whole schema of a tool is called among the definitions of one parameter's.
_ROOT = "parameters"


class ToolSchema(msgspec.Struct, frozen=True):
    """A tool whose calls are enforced.

    Attributes:
        strict: it is refused where a keyword of its parameters cannot be enforced; else, that is told.
        place: the field of the request that has the parameters.
    """

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False
    place: str = "tools"


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
        return self.schema.get("type") == "boolean" and self.schema.keys() <= {"type", *DEFINITIONS, *REMARKS}


def parameters_of(tool: ToolSchema) -> list[Parameter]:
    """A tool's parameters, in the order of its schema."""
    root = tool.parameters
    definitions = {key: root[key] for key in DEFINITIONS if key in root}
    beyond = _refers_beyond_definitions(definitions)
    # One for all: a copy for each parameter would take memory that grows with the square of the schema.
    whole_root: dict[str, Any] = {}
    required = root.get("required", [])
    found = []
    for name, schema in root.get("properties", {}).items():
        if schema is False and name not in required:
            # It is never there.
            continue
        # A schema may be true, for anything.
        schema = schema if isinstance(schema, Mapping) else {} if schema is True else {"enum": []}
        text, nullable = _text_of(schema, root)
        whole = {**schema, **definitions}
        if beyond or _refers_beyond_definitions(schema):
            whole_root = whole_root or {_ROOT: _moved(root)}
            whole = {**_moved(schema), "$defs": whole_root}
        found.append(Parameter(name, whole, name in required, text, nullable))
    return found


def texts_of(tool: ToolSchema) -> dict[str, bool]:
    """Those parameters whose values are text, and whether they may be null; as grammars have it, whatever is said."""
    left, _ = enforceable(tool.parameters)
    found = parameters_of(replace(tool, parameters=left))
    return {each.name: each.nullable for each in found if each.text is not None}


def beside_parameters(tool: ToolSchema) -> list[tuple[str, str]]:
    """What a tool's schema says that no format can enforce that writes parameters one by one: fields, and in words."""
    schema, properties = tool.parameters, tool.parameters.get("properties", {})
    found = [(f".{key}", f"the keyword {key!r} beside its properties") for key in schema if key not in _ENFORCED]
    for name in schema.get("required", []):
        if name not in properties:
            found.append((".required", f"that {name!r} is required, which is none of its properties,"))
    return found


def _refers_beyond_definitions(schema: Any) -> bool:
    """Whether a reference in a schema is to another part of the whole that it is from."""
    if isinstance(schema, list):
        return any(map(_refers_beyond_definitions, schema))
    if not isinstance(schema, Mapping):
        return False
    reference = schema.get("$ref")
    beyond = isinstance(reference, str) and (reference + "/").startswith("#/")
    if beyond and not str(reference).startswith(tuple(f"#/{key}/" for key in DEFINITIONS)):
        return True
    return any(_refers_beyond_definitions(inner) for key, inner in schema.items() if key not in VALUES)


def _moved(schema: Any) -> Any:
    """The same schema with references to where the whole is that it is from."""
    if isinstance(schema, list):
        return [_moved(inner) for inner in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: inner if key in VALUES else _moved(inner) for key, inner in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference + "/").startswith("#/"):
        moved["$ref"] = f"#/$defs/{_ROOT}{reference[1:]}"
    return moved


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
        definitions = root.get(start) if start in DEFINITIONS else None
        target = definitions.get(name) if isinstance(definitions, Mapping) else None
        if not isinstance(target, Mapping):
            break
        schema = target
    return schema
