"""Prompts whose answers are as real ones are: to measure what depends on what is said."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

from penstock.bundled.corpus.turns import POEM_TASKS
from penstock.core.errors import ConfigurationError

Encode = Callable[[Sequence[Mapping[str, Any]]], list[int]]

# By what their last answer is: a poem, one quoted or edited, an object in JSON.
_TASKS = {
    "chat": POEM_TASKS,
    "quote": frozenset(("repeat_line", "repeat_poem", "repeat_about", "replace")),
    "json": frozenset(("json", "to_json")),
}
WORKLOADS = (*_TASKS, "random")
# What their answers are held to.
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "json": {
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 60},
            "lines": {"type": "array", "items": {"type": "string", "maxLength": 80}, "minItems": 3, "maxItems": 3},
            "season": {"type": "string", "maxLength": 20},
        },
        "required": ["title", "lines", "season"],
        "additionalProperties": False,
    }
}
RANDOM_TOKENS = 64


def make_prompts(workload: str, number: int, encode: Encode | None, vocab_size: int) -> list[list[int]]:
    """`number` prompts of a workload, always the same ones: conversations, or random tokens.

    Raises ConfigurationError where there is no such workload, or it has texts and there is no tokenizer.
    """
    if workload == "random":
        source = random.Random(0)
        return [[source.randrange(vocab_size) for _ in range(RANDOM_TOKENS)] for _ in range(number)]
    if workload not in _TASKS:
        raise ConfigurationError(f"--workload {workload!r} is not one of {', '.join(WORKLOADS)}.")
    if encode is None:
        raise ConfigurationError(f"--workload {workload} has texts, and this model has no tokenizer; give random.")
    return [encode(messages) for messages in islice(_conversations(_TASKS[workload]), number)]


def _conversations(tasks: frozenset[str]) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Beginnings of conversations up to a question whose answer is one of these tasks."""
    from penstock.bundled.corpus.generator import held_out

    for index in count():
        conversation = held_out("hard", index)
        turns = [place for place, message in enumerate(conversation.messages) if message["role"] == "assistant"]
        for place, task in zip(turns, conversation.tasks, strict=False):
            if task in tasks:
                yield conversation.messages[:place]
                break
