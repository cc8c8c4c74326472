"""What an answer has used, from what its replica tells of it.

Servers of Penstock tell it of all answers. Of others, OpenAI's chat and completions have `prompt_tokens` and
`completion_tokens`; its responses, and Anthropic's messages, `input_tokens` and `output_tokens`, in streams within
`response` or `message`.
"""

import msgspec

from penstock.core.usage import USED, Used, used_in_header
from penstock.gateway.asked import TOKEN_BYTES
from penstock.gateway.exchange import Head
from penstock.gateway.headers import streams

# Bytes of an answer in which its usage is looked for.
_MOST_READ = 8 * 1024 * 1024
_DATA, _USAGE, _DONE = b"data:", b'"usage"', b"[DONE]"


class _Cached(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None
    input_tokens_details: _Cached | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Carrier(msgspec.Struct, frozen=True):
    usage: _Usage | None = None
    message: "_Carrier | None" = None
    response: "_Carrier | None" = None


_decode = msgspec.json.Decoder(_Carrier).decode


class UsageReader:
    """Reads an answer on its way.

    Attributes:
        used: what it has used so far; None where nothing says it.
        guessed: tokens of the answer, for where nothing says how many: an event is taken to hold one.
    """

    def __init__(self, head: Head) -> None:
        self._streams = streams(head.headers)
        told = [value for name, value in head.headers if name == USED]
        self.used = used_in_header(told[0]) if told else None
        # Servers of Penstock tell it in comments (`track.py`).
        self._reads = not told
        self._held = bytearray()
        self.guessed = 0

    def take(self, piece: bytes) -> None:
        """Some bytes of the answer have come."""
        if not self._reads:
            return
        self._held += piece
        if len(self._held) > _MOST_READ:
            self._reads = False
            self._held.clear()
            return
        if not self._streams:
            return
        *lines, rest = self._held.split(b"\n")
        self._held = bytearray(rest)
        for line in lines:
            if line.startswith(_DATA):
                self.guessed += line[len(_DATA) :].strip() != _DONE
                if _USAGE in line:
                    self._read(line[len(_DATA) :])

    def end(self) -> None:
        """It has come to its end."""
        if self._reads and not self._streams:
            self._read(self._held)
            self.guessed = max(1, len(self._held) // TOKEN_BYTES)

    def _read(self, content: bytes | bytearray) -> None:
        try:
            found = _decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        for carrier in (found, found.message, found.response):
            if carrier is not None and carrier.usage is not None:
                self.used = _merged(self.used, carrier.usage)


def _merged(before: Used | None, usage: _Usage) -> Used:
    """Anthropic tells of the prompt first, and of the answer last."""
    before = before or Used(0, 0, 0)
    details = usage.prompt_tokens_details or usage.input_tokens_details
    cached = usage.cache_read_input_tokens or 0 if details is None else details.cached_tokens or 0
    prompt = usage.prompt_tokens
    if prompt is None and usage.input_tokens is not None:
        # Its input_tokens are those beside the cache.
        prompt = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    output = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
    return Used(max(before.prompt, prompt or 0), max(before.cached, cached), max(before.output, output or 0))
