"""Anthropic's requests as those of OpenAI's chats, which the resolver knows."""

import json
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from penstock.api.anthropic.schema import (
    ContentBlock,
    MessagesFields,
    PromptFields,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
    TurnFields,
)
from penstock.api.anthropic.thinking import Disabled, budget_of, check_thinking, template_variables
from penstock.api.effort import Effort
from penstock.api.message_builder import MessageBuilder
from penstock.api.requests import ChatFields
from penstock.api.tools import FunctionFields, FunctionName, NamedTool, ToolFields
from penstock.core.errors import InvalidParameter

# Which of Anthropic's fields those of chats are made from.
NAMES = (
    (r"(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
    (r"(tools\[\d+\])\.function", r"\1"),
    # Other blocks than the client's make up a chat's messages.
    (r"messages(\[\d+\].*)?", "messages"),
    ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    ("stop", "stop_sequences"),
    ("user", "metadata.user_id"),
    ("continue_final_message", "messages"),
    (r"response_format(\.json_schema)?", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    ("thinking_token_budget", "thinking.budget_tokens"),
)

PlacedBlock = tuple[str, ContentBlock]


def chat_of_messages(fields: MessagesFields, variables: Collection[str]) -> ChatFields:
    """The chat that `/v1/messages` asks for; raises InvalidParameter.

    `variables` are those of the chat template.
    """
    metadata = fields.metadata
    return _chat(
        fields,
        variables,
        max_tokens=fields.max_tokens,
        stop=fields.stop_sequences,
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        stream=fields.stream,
        kv_policy=fields.kv_policy,
        timeout=fields.timeout,
        user=None if metadata is None else metadata.user_id,
        response_format=_response_format(fields),
        thinking_token_budget=budget_of(fields.thinking),
    )


def chat_of_prompt(fields: PromptFields, variables: Collection[str]) -> ChatFields:
    """The chat whose prompt `/v1/messages/count_tokens` counts; raises InvalidParameter."""
    return _chat(fields, variables)


def chat_of_prefix(fields: PromptFields, variables: Collection[str]) -> ChatFields:
    """The chat as far as `fields` go, with nothing behind it that would begin an answer; raises InvalidParameter."""
    return replace(_chat(fields, variables, is_whole=False), add_generation_prompt=False)


def _effort(fields: PromptFields) -> Effort | None:
    config = fields.output_config
    return None if config is None or isinstance(fields.thinking, Disabled) else config.effort


def _response_format(fields: MessagesFields) -> dict[str, Any] | None:
    config = fields.output_config
    if config is None or config.format is None:
        return None
    # There is none that is not strict.
    return {"type": "json_schema", "json_schema": {"schema": config.format.schema, "strict": True}}


def _chat(fields: PromptFields, variables: Collection[str], *, is_whole: bool = True, **others: Any) -> ChatFields:
    conversation = MessageBuilder()
    system = [fields.system] if isinstance(fields.system, str) else [block.text for block in fields.system or ()]
    if any(system):
        conversation.say("system", _joined(filter(None, system)))
    turns = list(_blocks(fields.messages))
    for role, blocks in groupby(turns, key=lambda turn: turn[0]):
        # Messages of one role that follow each other are one.
        placed = [block for _, part in blocks for block in part]
        if role == "assistant":
            _add_answer(conversation, placed)
        else:
            _add_turn(conversation, role, placed)
    continued = is_whole and bool(turns) and turns[-1][0] == "assistant"
    if continued and not isinstance(turns[-1][1][-1][1], TextBlock):
        raise InvalidParameter(turns[-1][1][-1][0], "the last message must end with text, to be continued.")
    check_thinking(fields.thinking, continued=continued, max_tokens=others.get("max_tokens"))
    return ChatFields(
        model=fields.model,
        messages=conversation.messages(),
        tools=[_tool(tool) for tool in fields.tools or ()] or None,
        tool_choice=_choice(fields.tool_choice),
        parallel_tool_calls=_parallel(fields.tool_choice),
        chat_template_kwargs=template_variables(fields.thinking, variables),
        reasoning_effort=_effort(fields),
        # An answer that the client has begun is continued.
        continue_final_message=continued or None,
        **others,
    )


def _tool(tool: Tool) -> ToolFields:
    return ToolFields(FunctionFields(tool.name, tool.description, tool.input_schema, tool.strict))


def _choice(choice: ToolChoice | None) -> str | NamedTool | None:
    if choice is None:
        return None
    if choice.type == "tool":
        if choice.name is None:
            raise InvalidParameter("tool_choice.name", "is missing.")
        return NamedTool(FunctionName(choice.name))
    if choice.name is not None:
        raise InvalidParameter("tool_choice.name", 'needs the type "tool".')
    return "required" if choice.type == "any" else choice.type


def _parallel(choice: ToolChoice | None) -> bool | None:
    return False if choice is not None and choice.disable_parallel_tool_use else None


def _blocks(messages: Iterable[TurnFields]) -> Iterator[tuple[str, list[PlacedBlock]]]:
    """Each message's role, and its blocks with their places."""
    for index, message in enumerate(messages):
        place = f"messages[{index}].content"
        if isinstance(message.content, str):
            yield message.role, [(place, TextBlock(message.content))]
        elif message.content:
            yield message.role, [(f"{place}[{number}]", block) for number, block in enumerate(message.content)]
        elif message.role == "assistant":
            # An answer may have ended before it said anything.
            yield message.role, [(place, TextBlock(""))]
        else:
            raise InvalidParameter(place, "is empty; send at least one block.")


def _add_answer(conversation: MessageBuilder, blocks: list[PlacedBlock]) -> None:
    for _, block in _texts_joined(blocks):
        if isinstance(block, TextBlock):
            conversation.answer(block.text)
        elif isinstance(block, ThinkingBlock):
            conversation.think(block.thinking)
        elif isinstance(block, ToolUseBlock):
            conversation.call(block.id, block.name, _arguments(block.input))


def _arguments(given: dict[str, Any] | list[Any] | str | None) -> str:
    """The input as the text that chats have; text is there as it is already."""
    if isinstance(given, str):
        return given
    return "" if given is None else json.dumps(given, ensure_ascii=False)


def _add_turn(conversation: MessageBuilder, role: str, blocks: list[PlacedBlock]) -> None:
    for place, block in _texts_joined(blocks):
        if isinstance(block, TextBlock):
            conversation.say(role, block.text)
        elif isinstance(block, ToolResultBlock) and not conversation.result(block.tool_use_id, _result(block)):
            name = f"{place}.tool_use_id"
            raise InvalidParameter(name, f"no tool_use before it has the id {block.tool_use_id[:40]!r}.")


def _texts_joined(blocks: list[PlacedBlock]) -> Iterator[PlacedBlock]:
    """The blocks; texts that follow each other are one."""
    for is_text, run in groupby(blocks, key=lambda placed: isinstance(placed[1], TextBlock)):
        placed = list(run)
        if is_text:
            yield placed[0][0], TextBlock(_joined(block.text for _, block in placed if isinstance(block, TextBlock)))
        else:
            yield from placed


def _result(block: ToolResultBlock) -> str:
    content = block.content or ""
    text = content if isinstance(content, str) else _joined(part.text for part in content)
    # Chat templates know no results that are errors, so the text says it.
    return f"Error: {text}" if block.is_error else text


def _joined(texts: Iterable[str]) -> str:
    """Several blocks of text become lines, as in chats."""
    return "\n".join(texts)
