"""Requests for responses as those of chats, which the resolver knows."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from penstock.api.extras import told_tier
from penstock.api.message_builder import MessageBuilder
from penstock.api.parsing import Names
from penstock.api.requests import ChatFields, StreamOptions
from penstock.api.responses.items import Item, add_items
from penstock.api.responses.schema import FunctionTool, InputFields, NamedFunction, NamespaceTool, ResponsesFields
from penstock.api.responses.tools import ToolNames
from penstock.api.tools import FunctionFields, FunctionName, NamedTool, ToolFields

# Which fields those of chats are made from; those of functions are `ToolNames.places`.
NAMES: Names = (
    (r"messages(\[\d+\].*)?", "input"),
    ("reasoning_effort", "reasoning.effort"),
    ("max_(completion_)?tokens", "max_output_tokens"),
    (r"response_format(\.json_schema)?", "text.format"),
)


def chat_of_response(
    fields: ResponsesFields, names: ToolNames, earlier: Iterable[Item], items: Iterable[Item]
) -> ChatFields:
    """The chat that a response continues: instructions, the items of earlier responses, those of this one.

    Raises InvalidParameter.
    """
    return replace(
        chat_of_input(fields, names, earlier, items),
        max_completion_tokens=fields.max_output_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        min_p=fields.min_p,
        seed=fields.seed,
        stop=fields.stop,
        ignore_eos=fields.ignore_eos,
        stream=fields.stream,
        stream_options=_stream_options(fields),
        user=fields.user,
        metadata=fields.metadata,
        priority=fields.priority,
        service_tier=fields.service_tier,
        cache_salt=fields.cache_salt,
        kv_policy=fields.kv_policy,
        prompt_cache_key=fields.prompt_cache_key,
        prompt_cache_retention=fields.prompt_cache_retention,
        timeout=fields.timeout,
    )


def chat_of_input(fields: InputFields, names: ToolNames, earlier: Iterable[Item], items: Iterable[Item]) -> ChatFields:
    """The chat as far as its prompt goes; raises InvalidParameter."""
    conversation = MessageBuilder()
    if fields.instructions is not None:
        conversation.say("system", fields.instructions)
    # They were checked when they came.
    add_items(conversation, earlier, names)
    add_items(conversation, items, names)
    # Without tools, these say nothing.
    choice = None if not names.functions and fields.tool_choice == "auto" else _choice(fields.tool_choice, names)
    parallel = fields.parallel_tool_calls if names.functions else None
    return ChatFields(
        model=fields.model,
        messages=conversation.messages(),
        tools=[_tool(name, function) for name, function in names.functions.items()] or None,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        reasoning_effort=None if fields.reasoning is None else fields.reasoning.effort,
        chat_template_kwargs=fields.chat_template_kwargs,
        response_format=_response_format(fields),
    )


def _stream_options(fields: ResponsesFields) -> StreamOptions | None:
    """Only what asks for something: chats refuse others where nothing is streamed."""
    asked = fields.stream_options is not None and fields.stream_options.include_obfuscation
    return StreamOptions(include_obfuscation=True) if asked else None


def _response_format(fields: InputFields) -> dict[str, Any] | None:
    """What chats have in an object of its own stands beside the type here."""
    given = None if fields.text is None else fields.text.format
    if given is None or given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {name: given[name] for name in given if name != "type"}}


def _tool(name: str, tool: FunctionTool) -> ToolFields:
    return ToolFields(FunctionFields(name, tool.description, tool.parameters, tool.strict))


def _choice(choice: str | NamedFunction | None, names: ToolNames) -> str | NamedTool | None:
    return NamedTool(FunctionName(names.known(None, choice.name))) if isinstance(choice, NamedFunction) else choice


def told_back(fields: ResponsesFields, kept: bool) -> dict[str, Any]:
    """The part of a response that says what was asked."""
    text_format = None if fields.text is None else fields.text.format
    return {
        "background": False,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "reasoning": {"effort": None if fields.reasoning is None else fields.reasoning.effort, "summary": None},
        "service_tier": told_tier(fields.service_tier) or "default",
        "store": kept,
        "text": {"format": text_format or {"type": "text"}},
        "tool_choice": fields.tool_choice or "auto",
        "tools": [_told_back_tool(tool) for tool in fields.tools or () if _has_functions(tool)],
        "top_logprobs": 0,
        "truncation": "disabled",
        "user": fields.user,
    }


def _has_functions(tool: FunctionTool | NamespaceTool) -> bool:
    return not isinstance(tool, NamespaceTool) or bool(tool.tools)


def _told_back_tool(tool: FunctionTool | NamespaceTool) -> dict[str, Any]:
    if isinstance(tool, NamespaceTool):
        tools = [_told_back_tool(function) for function in tool.tools]
        return {"type": "namespace", "name": tool.name, "description": tool.description, "tools": tools}
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
