"""Bodies of requests."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.bench.load.content import Content
from penstock.bench.load.workload import Block, Turn
from penstock.core.errors import ConfigurationError

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
# Fields that the load generator sets itself, and how to have another value.
_OWN = {
    "prompt": "comes from the workload",
    "messages": "comes from the workload",
    "stream": "is always true",
    "stream_options": "always asks for the usage",
    "model": "is given with --model",
    "temperature": "is given with --temperature",
    "ignore_eos": "is given with --ignore-eos",
    "max_tokens": "comes from the workload",
    "max_completion_tokens": "comes from the workload, as max_tokens",
}

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


class Bodies(msgspec.Struct, frozen=True):
    """How requests are written.

    Attributes:
        endpoint: completions or chat.
        extra: fields that the user added.
    """

    endpoint: str
    model: str
    content: Content
    temperature: float = 0.0
    ignore_eos: bool = False
    extra: dict[str, Any] = {}

    @property
    def path(self) -> str:
        """Path of the endpoint that requests go to."""
        return PATHS[self.endpoint]

    @property
    def choices(self) -> int:
        """How many answers each request asks for."""
        n = self.extra.get("n", 1)
        return n if isinstance(n, int) and n > 0 else 1

    def first(self, turn: Turn) -> Prompt:
        """The prompt of a conversation's first turn, as the endpoint takes it."""
        return self._prompt(turn)

    def next(self, before: Prompt, answer: str, turn: Turn) -> Prompt:
        """The prompt of a later turn: all that was said, and what is said now."""
        added = self._prompt(turn)
        if isinstance(before, str):
            return f"{before}{answer} {added}"
        # A message needs some content, even where an answer had none.
        said: list[Any] = [*before, {"role": "assistant", "content": answer or " "}, *added]
        return said

    def body(self, prompt: Prompt, output: int) -> bytes:
        """The body of a streamed request."""
        fields: dict[str, Any] = {
            "model": self.model,
            "messages" if self.endpoint == "chat" else "prompt": prompt,
            "max_tokens": output,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return msgspec.json.encode(fields | self.extra)

    def _prompt(self, turn: Turn) -> Prompt:
        prompt: Any = turn.prompt
        if prompt and isinstance(prompt[0], Block):
            prompt = self.content.render(prompt)
        return [{"role": "user", "content": prompt}] if self.endpoint == "chat" and isinstance(prompt, str) else prompt


def parse_extra(text: str | None) -> dict[str, Any]:
    """Fields that a JSON object adds to every body. Raises ConfigurationError."""
    if text is None:
        return {}
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"--extra-body is no JSON object: {error}.") from None
    for name in fields:
        if name in _OWN:
            raise ConfigurationError(f"--extra-body has {name}, which {_OWN[name]}.")
    return fields
