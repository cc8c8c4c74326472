"""The account of one HTTP request: what happened to it in the server, and the journals of what engines did with it."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from penstock.core.facts import PrefixFound
from penstock.core.kv_policy import KVPolicy
from penstock.core.plan import FinishReason
from penstock.engine.journal import Journal
from penstock.observability.explain.explanation import RequestSummary
from penstock.observability.metrics import Endpoint, Miss, Outcome

# A client that takes longer for what is sent to it is waited for; what is shorter is the server's own work.
STALL_SECONDS = 0.01
# Stalls that are kept one by one; later ones lengthen the last.
MOST_STALLS = 64


@dataclass(frozen=True, slots=True)
class Stall:
    """The server waited for the client to read, from `began` on the monotonic clock."""

    began: float
    seconds: float


@dataclass(slots=True)
class Preparation:
    """How a body became prompts: parsed, put through the chat template, tokenized.

    Attributes:
        waited: seconds for a thread that does it.
        worked: seconds in which it was done, and `computed`, those of them with a processor.
    """

    waited: float = 0.0
    worked: float = 0.0
    computed: float = 0.0


@dataclass(slots=True)
class Account:
    """Filled in while a request is served. Times are on the monotonic clock; what has not happened is None.

    Attributes:
        id: of the request, from its response's head.
        arrived: its head came in; `created` is that moment in Unix time. `begun`: the server got to it.
        client_id: what its client calls it; `user` and `metadata` are whose it says that it is.
        ignored: names of the request's fields that had no effect.
        caller: the headers in which its client says to which trace it belongs.
        response_id: of the response that it got.
        body_bytes: of its body, which was read at `received`.
        taken_on: it was admitted, and goes to the engine.
        prompts: their tokens, until it has ended; beyond that where the operator wants them kept.
        differed: by prompt, the token where the prompt cache goes on with another one.
        samples: for each prompt; `stream`: whether they are sent as they come.
        kv_policy: how its contexts are bounded; `dropped` has by prompt how many tokens have been dropped.
        finish_reasons: of the samples that are finished, in that order.
        journals: of the prompts, in the order in which the engine was given them.
        stalls: in which the client did not read; `stalled` is the sum of all.
        sending: since when something is being sent.
        status, code, message: of the response's head, None where its client left before it, and of the error with which
            it ended.
        outcome: how it has ended.
        ttft: seconds until its client got to see something; `missed` are the service levels that it missed.
        line: whether it is one of a batch.
        summary: what was told of it in short; None until a client has asked after its end.
    """

    id: str
    endpoint: Endpoint
    tenant: str
    arrived: float = field(default_factory=time.monotonic)
    created: float = field(default_factory=time.time)
    begun: float = field(default_factory=time.monotonic)
    client_id: str | None = None
    response_id: str | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    ignored: Sequence[str] = ()
    caller: Mapping[str, str] = field(default_factory=dict)
    body_bytes: int = 0
    received: float | None = None
    preparation: Preparation = field(default_factory=Preparation)
    taken_on: float | None = None
    prompt_tokens: int = 0
    prompts: list[list[int]] = field(default_factory=list)
    differed: dict[int, int] = field(default_factory=dict)
    samples: int = 1
    stream: bool = False
    kv_policy: KVPolicy | None = None
    dropped: dict[int, int] = field(default_factory=dict)
    finish_reasons: list[FinishReason] = field(default_factory=list)
    journals: list[Journal] = field(default_factory=list)
    sending: float | None = None
    stalls: list[Stall] = field(default_factory=list)
    stalled: float = 0.0
    outcome: Outcome | None = None
    status: int | None = 200
    code: str | None = None
    message: str | None = None
    ended: float | None = None
    ttft: float | None = None
    missed: Sequence[Miss] = ()
    line: bool = False
    summary: RequestSummary | None = None

    @property
    def output_tokens(self) -> int:
        """Of all prompts and samples."""
        return sum(journal.output_tokens for journal in self.journals)

    @property
    def queue_seconds(self) -> float | None:
        """The longest that a prompt waited to be computed; None where none was."""
        waits = [each.admitted.at - each.submitted.at for each in self.journals if each.admitted is not None]
        return max(waits, default=None)

    @property
    def time_to_first_token(self) -> float | None:
        """From its arrival to what its client first got to see; to the first token of any prompt while it runs."""
        if self.ttft is not None:
            return self.ttft
        firsts = [each.first_token.at for each in self.journals if each.first_token is not None]
        return min(firsts) - self.arrived if firsts else None

    def follow(self, journal: Journal) -> None:
        """The engine was given one of its prompts."""
        self.journals.append(journal)

    def drop(self, prompt: int, tokens: int) -> int:
        """A prompt's context has lost this number of tokens so far; how many more they are than were known."""
        more = tokens - self.dropped.get(prompt, 0)
        if more:
            self.dropped[prompt] = tokens
        return more

    def body(self, size: int) -> None:
        """The request's body, of `size` bytes, was read."""
        self.body_bytes, self.received = size, time.monotonic()

    def sent(self) -> None:
        """What was being sent is on its way."""
        if self.sending is not None and (now := time.monotonic()) - self.sending > STALL_SECONDS:
            self._stall(self.sending, now)
        self.sending = None

    def _stall(self, began: float, now: float) -> None:
        self.stalled += now - began
        if len(self.stalls) == MOST_STALLS:
            began = self.stalls.pop().began
        self.stalls.append(Stall(began, now - began))

    def judged(self, ttft: float | None, missed: Sequence[Miss]) -> None:
        """It was measured as its client sees it."""
        self.ttft, self.missed = ttft, missed

    def end(self, outcome: Outcome) -> None:
        """Nothing more happens; only the first call counts."""
        if self.outcome is not None:
            return
        self.outcome, self.ended = outcome, time.monotonic()
        if self.sending is not None:
            self._stall(self.sending, self.ended)
            self.sending = None
        for prompt, journal in enumerate(self.journals):
            token = self.token_at(prompt, journal.prefix)
            if token is not None:
                self.differed[prompt] = token

    def token_at(self, prompt: int, prefix: PrefixFound | None) -> int | None:
        """The token of a prompt that is not as what was cached, where that is known."""
        if prompt in self.differed:
            return self.differed[prompt]
        if prefix is None or prefix.position is None or prompt >= len(self.prompts):
            return None
        tokens = self.prompts[prompt]
        return tokens[prefix.position] if prefix.position < len(tokens) else None


# The request whose body the running task prepares.
PREPARED: ContextVar[Preparation | None] = ContextVar("preparation", default=None)


@contextlib.contextmanager
def working(preparation: Preparation | None, asked: float) -> Iterator[None]:
    """What the block does is a part of the preparation, for which it was asked at `asked`."""
    began, computed = time.monotonic(), time.thread_time()
    try:
        yield
    finally:
        if preparation is not None:
            preparation.waited += began - asked
            preparation.worked += time.monotonic() - began
            preparation.computed += time.thread_time() - computed
