"""What came of one request."""

import enum

import msgspec


class End(enum.Enum):
    """How a request ended, seen from the client."""

    OK = "ok"
    FAILED = "failed"
    # By the client, as it was meant to.
    CANCELLED = "cancelled"
    # By the client, since the rate was more than the server could do.
    ABANDONED = "abandoned"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One request; times are in seconds from the beginning of its run, None where it never came to that.

    Attributes:
        number: of the conversation, and its turn.
        scheduled: when it was due.
        started: when the client got to it; what lies between is the client's own lag.
        sent: when it was written to a connection.
        first: first chunk with content.
        last: last chunk with content, or with the reason of the end.
        ended: when nothing more was to come.
        kind, message: what went wrong, and how it was said.
        status: of HTTP.
        asked: most tokens of the answer.
        input_tokens, cached_tokens, output_tokens: as the server's usage says.
        choices: answers to the one prompt.
        chunks: with content.
        longest_gap: the longest time between chunks with content.
    """

    number: int
    turn: int = 0
    end: End
    scheduled: float
    started: float
    sent: float | None = None
    first: float | None = None
    last: float | None = None
    ended: float
    kind: str | None = None
    message: str | None = None
    status: int | None = None
    asked: int
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    choices: int = 1
    chunks: int = 0
    longest_gap: float | None = None

    @property
    def ttft(self) -> float | None:
        """Time to first token: from when it was due to the first chunk with content."""
        return None if self.first is None else self.first - self.scheduled

    @property
    def e2e(self) -> float | None:
        """End to end: from when it was due to the last chunk."""
        return None if self.last is None else self.last - self.scheduled

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first: (E2E - TTFT) / (n - 1); None for a single token."""
        if self.ttft is None or self.e2e is None or self.output_tokens is None or self.output_tokens <= self.choices:
            return None
        return (self.e2e - self.ttft) / (self.output_tokens / self.choices - 1)

    @property
    def e2e_per_token(self) -> float | None:
        """E2E / n, the first token included; some tools call this the time per output token."""
        return None if self.e2e is None or not self.output_tokens else self.e2e * self.choices / self.output_tokens

    @property
    def lag(self) -> float:
        """How late the client itself was."""
        return self.started - self.scheduled
