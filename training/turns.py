"""The model's turns in a conversation, each with what comes before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.bundled.corpus.dialogue import Conversation
from penstock.text.chat_template import ChatEncoder


@dataclass(frozen=True)
class Turn:
    """One turn of the model: what comes before it, what its kind is, what it must mention, what the generator said."""

    conversation: Conversation
    before: tuple[dict[str, Any], ...]
    task: str
    topic: str | None
    expected: str
    calls: list[dict[str, Any]]


def turns_of(conversation: Conversation) -> Iterator[Turn]:
    """All turns of the model in a conversation."""
    at = [index for index, message in enumerate(conversation.messages) if message["role"] == "assistant"]
    for number, index in enumerate(at):
        yield Turn(
            conversation,
            conversation.messages[:index],
            conversation.tasks[number],
            conversation.topics[number],
            conversation.messages[index]["content"],
            [call["function"] for call in conversation.messages[index].get("tool_calls", ())],
        )


def prompt_ids(encoder: ChatEncoder, turn: Turn) -> list[int]:
    """Token ids of everything before the turn, up to where the model begins to speak."""
    return encoder.encode(turn.before, variables={"tools": list(turn.conversation.tools) or None})
