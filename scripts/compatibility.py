"""Which fields of requests are implemented, hints, or refused, by endpoint: writes docs/compatibility.md.

The fields are those of the server's own types and rules, beside those that the packages `openai` and `anthropic` know.
A field that a package has and the server knows nothing of is an error, so that their releases show up here first.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from penstock.api import requests, tools
from penstock.api.anthropic import schema as messages
from penstock.api.anthropic import thinking
from penstock.api.fields import FieldRule, FieldRules, HintField, RefusedField
from penstock.api.openai import schema, tokens
from penstock.api.responses import items
from penstock.api.responses import schema as responses
from penstock.api.responses import tools as response_tools

PAGE = Path(__file__).resolve().parent.parent / "docs" / "compatibility.md"
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES, INPUT_TOKENS = "/v1/responses", "/v1/responses/input_tokens"
MESSAGES, COUNT_TOKENS, TOKENIZE = "/v1/messages", "/v1/messages/count_tokens", "/tokenize"
ENDPOINTS = (CHAT, COMPLETIONS, RESPONSES, INPUT_TOKENS, MESSAGES, COUNT_TOKENS, EMBEDDINGS, TOKENIZE)
PACKAGES = ("openai", "anthropic")


@dataclass(frozen=True)
class Place:
    """An object in the bodies of requests.

    Attributes:
        endpoints: whose bodies have it.
        path: where it is, with a dot at its end; empty for the whole body.
        kinds: the server's types of it.
        rules: of fields that these lack.
        package_types: what the packages call it, as "module:name".
        others_are_hints: whether fields without a rule are the client's own.
    """

    endpoints: tuple[str, ...]
    path: str
    kinds: tuple[type, ...]
    rules: FieldRules = field(default_factory=dict)
    package_types: tuple[str, ...] = ()
    others_are_hints: bool = False


_OPENAI, _ANTHROPIC, _BETA = "openai.types", "anthropic.types", "anthropic.types.beta"
_CHAT_MESSAGES = tuple(
    f"{_OPENAI}.chat:ChatCompletion{role}MessageParam" for role in ("Assistant", "Developer", "System", "Tool", "User")
)
_BODIES = (
    Place(
        (CHAT,),
        "",
        (requests.ChatFields,),
        schema.RULES,
        (f"{_OPENAI}.chat.completion_create_params:CompletionCreateParamsStreaming",),
    ),
    Place(
        (COMPLETIONS,),
        "",
        (requests.CompletionFields,),
        schema.COMPLETION_RULES,
        (f"{_OPENAI}.completion_create_params:CompletionCreateParamsStreaming",),
    ),
    Place(
        (EMBEDDINGS,),
        "",
        (requests.EmbeddingFields,),
        schema.EMBEDDING_RULES,
        (f"{_OPENAI}.embedding_create_params:EmbeddingCreateParams",),
    ),
    Place(
        (RESPONSES,),
        "",
        (responses.ResponsesFields,),
        responses.RULES,
        (f"{_OPENAI}.responses.response_create_params:ResponseCreateParamsStreaming",),
    ),
    Place(
        (INPUT_TOKENS,),
        "",
        (responses.InputFields,),
        responses.RULES,
        (f"{_OPENAI}.responses.input_token_count_params:InputTokenCountParams",),
    ),
    Place(
        (MESSAGES,),
        "",
        (messages.MessagesFields,),
        messages.RULES,
        (
            f"{_ANTHROPIC}.message_create_params:MessageCreateParamsStreaming",
            f"{_BETA}.message_create_params:MessageCreateParamsStreaming",
        ),
    ),
    Place(
        (COUNT_TOKENS,),
        "",
        (messages.PromptFields,),
        messages.RULES,
        (
            f"{_ANTHROPIC}.message_count_tokens_params:MessageCountTokensParams",
            f"{_BETA}.message_count_tokens_params:MessageCountTokensParams",
        ),
    ),
    Place((TOKENIZE,), "", (tokens.TokenizeFields,), tokens.RULES),
)
_INSIDE = (
    Place(
        (CHAT, TOKENIZE),
        "messages[].",
        (requests.Message,),
        schema.MESSAGE_RULES,
        _CHAT_MESSAGES,
        others_are_hints=True,
    ),
    Place((CHAT, TOKENIZE), "messages[].content[].", (), schema.PART_RULES),
    Place(
        (CHAT,),
        "stream_options.",
        (requests.StreamOptions,),
        package_types=(f"{_OPENAI}.chat:ChatCompletionStreamOptionsParam",),
    ),
    Place(
        (CHAT, TOKENIZE),
        "tools[].function.",
        (tools.FunctionFields,),
        package_types=(f"{_OPENAI}.shared_params:FunctionDefinition",),
    ),
    Place(
        (RESPONSES,),
        "stream_options.",
        (responses.StreamConfig,),
        package_types=(f"{_OPENAI}.responses.response_create_params:StreamOptions",),
    ),
    Place(
        (RESPONSES, INPUT_TOKENS),
        "reasoning.",
        (responses.ReasoningConfig,),
        responses.REASONING_RULES,
        (f"{_OPENAI}.shared_params:Reasoning",),
    ),
    Place(
        (RESPONSES, INPUT_TOKENS),
        "text.",
        (responses.TextConfig,),
        responses.TEXT_RULES,
        (f"{_OPENAI}.responses:ResponseTextConfigParam",),
    ),
    Place(
        (RESPONSES, INPUT_TOKENS),
        "tools[].",
        (responses.FunctionTool, responses.NamespaceTool),
        response_tools.TOOL_RULES,
        (f"{_OPENAI}.responses:FunctionToolParam", f"{_OPENAI}.responses:NamespaceToolParam"),
    ),
    *(
        Place(
            (RESPONSES, INPUT_TOKENS),
            f"input[{kind}].",
            (items_kind,),
            items.ITEM_RULES[kind],
            (f"{_OPENAI}.responses.{package}",),
        )
        for kind, items_kind, package in (
            ("message", items.MessageItem, "response_input_item_param:Message"),
            ("function_call", items.CallItem, "response_function_tool_call_param:ResponseFunctionToolCallParam"),
            ("function_call_output", items.CallOutputItem, "response_input_item_param:FunctionCallOutput"),
            ("reasoning", items.ReasoningItem, "response_reasoning_item_param:ResponseReasoningItemParam"),
        )
    ),
    Place(
        (MESSAGES, COUNT_TOKENS),
        "output_config.",
        (messages.OutputConfig,),
        messages.OUTPUT_RULES,
        (f"{_ANTHROPIC}:OutputConfigParam", f"{_BETA}:BetaOutputConfigParam"),
    ),
    Place(
        (MESSAGES, COUNT_TOKENS),
        "thinking.",
        (thinking.Enabled, thinking.Adaptive, thinking.Disabled),
        messages.THINKING_CONFIG_RULES,
        (f"{_ANTHROPIC}:ThinkingConfigEnabledParam", f"{_ANTHROPIC}:ThinkingConfigAdaptiveParam"),
    ),
    Place(
        (MESSAGES, COUNT_TOKENS),
        "tools[].",
        (messages.Tool,),
        messages.TOOL_RULES,
        (f"{_ANTHROPIC}:ToolParam", f"{_BETA}:BetaToolParam"),
    ),
    Place(
        (MESSAGES, COUNT_TOKENS),
        "tool_choice.",
        (messages.ToolChoice,),
        package_types=(f"{_ANTHROPIC}:ToolChoiceToolParam", f"{_ANTHROPIC}:ToolChoiceAutoParam"),
    ),
    Place((MESSAGES,), "metadata.", (messages.Metadata,), package_types=(f"{_ANTHROPIC}:MetadataParam",)),
    *(
        Place((MESSAGES, COUNT_TOKENS), f"messages[].content[{kind}].", (block,), rules, (f"{_ANTHROPIC}:{package}",))
        for kind, block, rules, package in (
            ("text", messages.TextBlock, messages.BLOCK_RULES, "TextBlockParam"),
            (
                "thinking",
                messages.ThinkingBlock,
                {**messages.BLOCK_RULES, **messages.THINKING_RULES},
                "ThinkingBlockParam",
            ),
            ("tool_use", messages.ToolUseBlock, messages.BLOCK_RULES, "ToolUseBlockParam"),
            ("tool_result", messages.ToolResultBlock, messages.BLOCK_RULES, "ToolResultBlockParam"),
        )
    ),
)
PLACES = (*_BODIES, *_INSIDE)


@dataclass(frozen=True)
class Row:
    """One field of one place: implemented where it has no rule."""

    place: Place
    name: str
    rule: FieldRule | None

    @property
    def word(self) -> str:
        """What the server does with it."""
        return "yes" if self.rule is None else "hint" if isinstance(self.rule, HintField) else "refused"


def rows(place: Place) -> list[Row]:
    """Every field that the server knows there, and those of packages that it takes for the client's own."""
    own = {name for kind in place.kinds for name in (*_fields_of(kind), *_tag_of(kind))}
    known = [Row(place, name, None) for name in sorted(own)]
    known += [Row(place, name, place.rules[name]) for name in sorted(place.rules.keys() - own)]
    if place.others_are_hints:
        names = package_fields(place) - own - place.rules.keys()
        own_record = HintField("It is the client's own record.")
        known += [Row(place, name, own_record) for name in sorted(names)] + [Row(place, "any other", own_record)]
    return known


def unknown(place: Place) -> set[str]:
    """Fields that a package has and the server knows nothing of."""
    return package_fields(place) - {row.name for row in rows(place)}


def package_fields(place: Place) -> set[str]:
    """The fields that the packages know there."""
    names: set[str] = set()
    for each in place.package_types:
        module, _, name = each.partition(":")
        kind = getattr(importlib.import_module(module), name)
        names |= kind.__required_keys__ | kind.__optional_keys__
    return names


def _fields_of(kind: Any) -> tuple[str, ...]:
    return tuple(kind.__struct_encode_fields__)


def _tag_of(kind: Any) -> Iterator[str]:
    if kind.__struct_config__.tag_field is not None:
        yield kind.__struct_config__.tag_field


def page() -> str:
    """The text of docs/compatibility.md."""
    packages = " and ".join(f"{each} {version(each)}" for each in PACKAGES)
    lines = [
        "# Fields of requests",
        "",
        "A field of a request is one of three:",
        "",
        "- **yes**: it is implemented.",
        "- **hint**: it asks for nothing that would change what a right answer is. It is accepted, and named in the",
        "  response header `x-penstock-ignored` and in the request's account (`penstock explain ID`).",
        "- **refused**: it asks for something that the server does not do. Values that ask for nothing are accepted.",
        "",
        "Every other field is refused by name, with the nearest field that there is. `--unknown-fields tell` accepts",
        "such fields and names them in the header.",
        "",
        f"The table has every field of the Python packages {packages}.",
        "It is made by `python scripts/compatibility.py`, and each cell is checked by a request.",
        "",
        "## Bodies",
        "",
        *_matrix(_BODIES),
        "",
        "## Inside of bodies",
        "",
        *_matrix(_INSIDE),
        "",
        "## Hints and refusals",
        "",
        "| field | endpoints | what the server says |",
        "|---|---|---|",
        *_notes(),
    ]
    return "\n".join(lines) + "\n"


def _matrix(places: Sequence[Place]) -> Iterator[str]:
    cells: dict[str, dict[str, str]] = {}
    for place in places:
        for row in rows(place):
            for endpoint in place.endpoints:
                cells.setdefault(place.path + row.name, {})[endpoint] = row.word
    endpoints = [endpoint for endpoint in ENDPOINTS if any(endpoint in words for words in cells.values())]
    yield f"| field | {' | '.join(f'`{endpoint}`' for endpoint in endpoints)} |"
    yield f"|---|{'---|' * len(endpoints)}"
    for name in sorted(cells):
        yield f"| `{name}` | {' | '.join(cells[name].get(endpoint, '') for endpoint in endpoints)} |"


def _notes() -> Iterator[str]:
    notes: dict[tuple[str, str], list[str]] = {}
    for place in PLACES:
        for row in rows(place):
            if row.rule is not None:
                notes.setdefault((place.path + row.name, _said(row.rule)), []).extend(place.endpoints)
    for (name, said), endpoints in sorted(notes.items()):
        yield f"| `{name}` | {', '.join(f'`{endpoint}`' for endpoint in endpoints)} | {said} |"


def _said(rule: FieldRule) -> str:
    if isinstance(rule, RefusedField):
        return f"Refused: {rule.message}"
    return f"Hint: {rule.why}" + (f" Other values: {rule.otherwise}" if rule.otherwise else "")


def main() -> None:
    """Write the page, or say which fields of the packages are unknown."""
    parser = argparse.ArgumentParser(description="Write docs/compatibility.md.")
    parser.parse_args()
    missing = [f"{place.path}{name} ({place.endpoints[0]})" for place in PLACES for name in sorted(unknown(place))]
    if missing:
        sys.exit(f"The packages have fields that the server has no rule for: {', '.join(missing)}.")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
