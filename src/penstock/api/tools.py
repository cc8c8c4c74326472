"""The tools that a request offers: what is accepted, and what they mean for prompt, sampling and output."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.core.errors import InvalidParameter
from penstock.text.calls.formats import UNTYPED
from penstock.text.calls.grammar import MAX_CALLS, CallsGrammar, calls_grammar
from penstock.text.calls.parameters import ToolSchema, texts_of
from penstock.text.output_format import OutputFormat

MAX_TOOLS = 128
# How deep lists and objects inside of a tool's parameters may go.
MAX_SCHEMA_DEPTH = 32
# As OpenAI and Anthropic have them, and the Model Context Protocol, whose names may be longer and have dots.
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class FunctionFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that the model may use."""

    function: FunctionFields
    type: str = "function"


class FunctionName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The function that the model must call."""

    name: str


class NamedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tool that the model must use."""

    function: FunctionName
    type: str = "function"


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """Tools that a request's outputs may, or must, call.

    Attributes:
        offered: the tools, in the form that chat templates take.
        callable: those of them that may be called.
        required: whether the output must be calls and nothing else.
        most_calls: calls after this number are left out.
    """

    offered: list[dict[str, Any]]
    callable: list[ToolSchema]
    required: bool = False
    most_calls: int = MAX_CALLS

    def texts(self, style: OutputFormat) -> dict[str, dict[str, bool]]:
        """Where values do not say it: of each tool, those parameters that are text, and whether they may be null."""
        return {tool.name: texts_of(tool) for tool in self.callable} if style.calls in UNTYPED else {}

    def grammar(self, style: OutputFormat, otherwise: Mapping[str, Any] | None = None) -> CallsGrammar | None:
        """A grammar that outputs must follow; None where the model may write what it likes.

        Answers that are no calls fit the JSON schema `otherwise`, where there is one.
        """
        strict = any(tool.strict for tool in self.callable)
        if style.calls is None or not (self.required or strict or otherwise is not None):
            return None
        return calls_grammar(
            style.calls,
            self.callable,
            "strict" if otherwise is None and not self.required else "required",
            self.most_calls > 1,
            special_markers=style.special_markers,
            by_name=style.calls_by_name,
            otherwise=None if self.required else otherwise,
        )


def resolve_tools(
    tools: Sequence[ToolFields] | None,
    choice: str | NamedTool | None,
    parallel: bool | None,
    style: OutputFormat,
) -> ToolUse | None:
    """What a request's tools come to; None where there are none to be called. Raises InvalidParameter."""
    if not tools:
        if choice not in (None, "none"):
            raise InvalidParameter("tool_choice", "needs tools.")
        if parallel is not None:
            raise InvalidParameter("parallel_tool_calls", "needs tools.")
        return None
    if len(tools) > MAX_TOOLS:
        raise InvalidParameter("tools", f"{len(tools)} tools given, at most {MAX_TOOLS} are accepted.")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        _check_tool(tool, f"tools[{index}]", names)
    named = _check_choice(choice, names)
    if choice == "none":
        return None
    if style.calls is None:
        raise InvalidParameter("tools", style.refusal)
    return ToolUse(
        offered=[_as_template_takes_it(tool.function) for tool in tools],
        callable=[
            _schema(tool.function, f"tools[{index}].function.parameters")
            for index, tool in enumerate(tools)
            if named in (None, tool.function.name)
        ],
        required=named is not None or choice == "required",
        most_calls=1 if named is not None or parallel is False else MAX_CALLS,
    )


def _check_tool(tool: ToolFields, path: str, names: set[str]) -> None:
    function = tool.function
    if tool.type != "function":
        raise InvalidParameter(f"{path}.type", f"{tool.type[:40]!r} is not 'function'.")
    if not _NAME.fullmatch(function.name):
        raise InvalidParameter(
            f"{path}.function.name", "must be 1 to 128 letters, digits, underscores, dashes and dots."
        )
    if function.name in names:
        raise InvalidParameter(f"{path}.function.name", f"{function.name!r} is the name of another tool, too.")
    names.add(function.name)
    if function.parameters is not None:
        _check_schema(function.parameters, f"{path}.function.parameters")


def _check_schema(schema: dict[str, Any], path: str) -> None:
    """What can be said of a schema without compiling it: it is one of objects, and nested within bounds."""
    if schema.get("type", "object") != "object":
        raise InvalidParameter(f"{path}.type", "must be 'object': a tool's arguments are one.")
    if not isinstance(schema.get("properties", {}), dict):
        raise InvalidParameter(f"{path}.properties", "must be an object.")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise InvalidParameter(f"{path}.required", "must be a list of strings.")
    level: list[Any] = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [inner for value in level for inner in _inside(value)]
    if any(isinstance(value, dict | list) for value in level):
        raise InvalidParameter(path, f"lists and objects are nested more than {MAX_SCHEMA_DEPTH} deep.")


def _inside(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _check_choice(choice: str | NamedTool | None, names: set[str]) -> str | None:
    """The name of the tool that must be called, if one is named."""
    if isinstance(choice, NamedTool):
        if choice.type != "function":
            raise InvalidParameter("tool_choice.type", f"{choice.type[:40]!r} is not 'function'.")
        if choice.function.name not in names:
            raise InvalidParameter("tool_choice", f"{choice.function.name[:64]!r} is not one of the tools.")
        return choice.function.name
    if choice not in (None, "none", "auto", "required"):
        raise InvalidParameter(
            "tool_choice", f"{choice[:40]!r} is not one of none, auto, required and an object that names a function."
        )
    return None


def _as_template_takes_it(function: FunctionFields) -> dict[str, Any]:
    """A tool in the order of fields that models are trained with; `strict` is not for the model."""
    fields: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        fields["description"] = function.description
    fields["parameters"] = {"type": "object", "properties": {}} if function.parameters is None else function.parameters
    return {"type": "function", "function": fields}


def _schema(function: FunctionFields, place: str) -> ToolSchema:
    parameters = _NO_PARAMETERS if function.parameters is None else function.parameters
    return ToolSchema(function.name, parameters, bool(function.strict), place)
