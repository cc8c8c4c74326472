"""Marks of prefixes that are to be kept: `cache_control` in Anthropic's requests.

A mark stands on a tool, a block of the system's text or a block of a message, and means the prompt up to there. How
many tokens that is follows from the chat template: those that the whole prompt has in common with the prompt of a
request that ends at the mark.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from msgspec.structs import replace

from penstock.api.anthropic.schema import (
    CacheControl,
    ContentBlock,
    PromptFields,
    ThinkingBlock,
    ToolResultBlock,
    TurnFields,
)
from penstock.core.errors import InvalidParameter
from penstock.core.events import KeptTokens
from penstock.core.request import KeptPrefix

MAX_MARKS = 4
_SECONDS = {"5m": 300.0, "1h": 3600.0}
# What comes behind a mark that is before the messages. Where the request goes on with the same character, that is kept
# as well.
_ANYTHING = TurnFields("user", "\N{REFERENCE MARK}")


class CacheBreakpoint(NamedTuple):
    """A mark: where it stands, how long the prefix is to be kept, and the request as far as there."""

    place: str
    seconds: float
    prefix: PromptFields


def marks_of(fields: PromptFields) -> list[CacheBreakpoint]:
    """The marks of a request, the shortest prefix first; raises InvalidParameter where they break the rules."""
    placed = [*_marked_tools(fields), *_marked_system(fields), *_marked_messages(fields)]
    if fields.cache_control is not None and not (placed and _ends_marked(fields)):
        placed.append(("cache_control", fields.cache_control, fields))
    if len(placed) > MAX_MARKS:
        raise InvalidParameter(
            placed[MAX_MARKS][0], f"is mark {MAX_MARKS + 1} of {len(placed)}; at most {MAX_MARKS} are accepted."
        )
    marks = [CacheBreakpoint(place, _SECONDS[control.ttl or "5m"], prefix) for place, control, prefix in placed]
    for before, mark in zip(marks, marks[1:], strict=False):
        if mark.seconds > before.seconds:
            raise InvalidParameter(
                mark.place, f'of "1h" comes behind {before.place} of "5m"; what is kept for longer must come first.'
            )
    return marks


def kept_prefixes(
    marks: Sequence[CacheBreakpoint], prompt: list[int], encode: Callable[[PromptFields], list[int]]
) -> tuple[KeptPrefix, ...]:
    """What the marks come to in the tokens of `prompt`; `encode` gives the tokens of a request that ends at a mark.

    A conversation that the chat template cannot write up to a mark has nothing in front of it that could be kept.
    """
    kept: list[KeptPrefix] = []
    for mark in marks:
        try:
            prefix = encode(mark.prefix)
        except InvalidParameter:
            prefix = []
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prefix, prompt, strict=False)))
        kept.append(KeptPrefix(same, mark.seconds))
    return tuple(sorted(kept, key=lambda prefix: prefix.tokens))


def input_usage(
    prompt_tokens: int, cached_tokens: int, wanted: Sequence[KeptPrefix], kept: KeptTokens | None
) -> dict[str, Any]:
    """How many of the prompt's tokens were read from the cache, written to it, or neither; they add up to it.

    Without marks that is what the cache happened to have. With marks only what was kept counts as read, and what is
    kept from now on as written, by its time.
    """
    written = dict.fromkeys(_SECONDS, 0)
    read = cached_tokens
    if wanted:
        read = done = 0 if kept is None else kept.before
        names = {seconds: name for name, seconds in _SECONDS.items()}
        for prefix, tokens in zip(wanted, () if kept is None else kept.now, strict=False):
            written[names[prefix.seconds]] += max(0, tokens - done)
            done = max(done, tokens)
    total = sum(written.values())
    return {
        "input_tokens": prompt_tokens - read - total,
        "cache_creation_input_tokens": total,
        "cache_read_input_tokens": read,
        "cache_creation": {f"ephemeral_{name}_input_tokens": tokens for name, tokens in written.items()},
    }


Placed = tuple[str, CacheControl, PromptFields]


def _marked_tools(fields: PromptFields) -> Iterator[Placed]:
    tools = fields.tools or []
    for index, tool in enumerate(tools):
        if tool.cache_control is not None:
            # A choice can name a tool that comes later.
            prefix = replace(fields, tools=tools[: index + 1], tool_choice=_unnamed(fields), messages=[_ANYTHING])
            yield f"tools[{index}].cache_control", tool.cache_control, prefix


def _marked_system(fields: PromptFields) -> Iterator[Placed]:
    blocks = fields.system if isinstance(fields.system, list) else []
    for index, block in enumerate(blocks):
        if block.cache_control is not None:
            prefix = replace(fields, system=blocks[: index + 1], messages=[_ANYTHING])
            yield f"system[{index}].cache_control", block.cache_control, prefix


def _marked_messages(fields: PromptFields) -> Iterator[Placed]:
    for index, message in enumerate(fields.messages):
        blocks = message.content if isinstance(message.content, list) else []
        for number, block in enumerate(blocks):
            for place, control, end in _marks_of_block(block, f"messages[{index}].content[{number}]"):
                last = replace(message, content=[*blocks[:number], end])
                yield place, control, replace(fields, messages=[*fields.messages[:index], last])


def _marks_of_block(block: ContentBlock, place: str) -> Iterator[tuple[str, CacheControl, ContentBlock]]:
    """The marks within a block and on it, each with the block as far as there."""
    if isinstance(block, ToolResultBlock) and isinstance(block.content, list):
        for index, part in enumerate(block.content):
            if part.cache_control is not None:
                end = replace(block, content=block.content[: index + 1])
                yield f"{place}.content[{index}].cache_control", part.cache_control, end
    if not isinstance(block, ThinkingBlock) and block.cache_control is not None:
        yield f"{place}.cache_control", block.cache_control, block


def _unnamed(fields: PromptFields) -> Any:
    choice = fields.tool_choice
    return None if choice is not None and choice.type == "tool" else choice


def _ends_marked(fields: PromptFields) -> bool:
    """Whether the last block has a mark of its own."""
    content = fields.messages[-1].content if fields.messages else ""
    if isinstance(content, str) or not content:
        return False
    last = content[-1]
    return not isinstance(last, ThinkingBlock) and last.cache_control is not None
