"""What a request of Anthropic's API says of reasoning."""

from collections.abc import Collection
from typing import Any

import msgspec

from penstock.api.effort import switch_of
from penstock.core.errors import InvalidParameter

LEAST_BUDGET = 1024


class Enabled(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="enabled"):
    """The model reasons, with at most `budget_tokens` tokens."""

    budget_tokens: int


class Adaptive(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="adaptive"):
    """The model reasons as much as it likes."""


class Disabled(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="disabled"):
    """The model does not reason, where its chat template can say so."""


Thinking = Enabled | Adaptive | Disabled


def asks_for_reasoning(thinking: Thinking | None) -> bool:
    """Whether the model is asked to reason."""
    return thinking is not None and not isinstance(thinking, Disabled)


def check_thinking(thinking: Thinking | None, *, continued: bool, max_tokens: int | None) -> None:
    """Raise InvalidParameter where reasoning is asked for that cannot be.

    Args:
        thinking: what the request says.
        continued: whether the client has begun the answer.
        max_tokens: most tokens of the answer, reasoning included, where there will be one.
    """
    if not asks_for_reasoning(thinking):
        return
    if continued:
        raise InvalidParameter("thinking", "cannot be combined with an answer that the last message has begun.")
    if not isinstance(thinking, Enabled):
        return
    name = "thinking.budget_tokens"
    if thinking.budget_tokens < LEAST_BUDGET:
        raise InvalidParameter(name, f"{thinking.budget_tokens} is below {LEAST_BUDGET}, the least.")
    if max_tokens is not None and thinking.budget_tokens >= max_tokens:
        raise InvalidParameter(
            name, f"{thinking.budget_tokens} must be less than max_tokens ({max_tokens}), which counts reasoning too."
        )


def template_variables(thinking: Thinking | None, known: Collection[str]) -> dict[str, Any] | None:
    """What says it to the chat template, where that reads it; other templates have nothing that would."""
    switch = switch_of(known)
    if thinking is None or switch is None:
        return None
    return {switch: not isinstance(thinking, Disabled)}


def budget_of(thinking: Thinking | None) -> int | None:
    """How many tokens of reasoning there may be."""
    return thinking.budget_tokens if isinstance(thinking, Enabled) else None
