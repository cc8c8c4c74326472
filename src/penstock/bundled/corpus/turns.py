"""The model's turns in a conversation, each with what comes before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.bundled.corpus.dialogue import Conversation

# Turns whose answer is a poem that was not said before.
POEM_TASKS = frozenset(("haiku", "titled", "another", "change"))


@dataclass(frozen=True)
class Turn:
    """One turn of the model: what comes before it, what its kind is, what it must mention, what the generator said."""

    conversation: Conversation
    before: tuple[dict[str, Any], ...]
    task: str
    topic: str | None
    expected: str
    calls: list[dict[str, Any]]

    def prompt_ids(self, encode: Callable[..., list[int]]) -> list[int]:
        """Token ids of everything before the turn, up to where the model begins to speak, by a template's `encode`."""
        return encode(self.before, variables={"tools": list(self.conversation.tools) or None})


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


def first_turns(make: Callable[[int], Conversation], tasks: frozenset[str] | None, count: int) -> list[Turn]:
    """The first `count` turns of these tasks (of all, where None) in the conversations that `make` gives by number."""
    found: list[Turn] = []
    index = 0
    while len(found) < count:
        found += [turn for turn in turns_of(make(index)) if tasks is None or turn.task in tasks]
        index += 1
    return found[:count]
