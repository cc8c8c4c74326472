"""What was sent to each replica and is not over: counted when it is sent, released on every way out."""

from math import inf
from typing import Literal, NamedTuple

import msgspec


class Sent(msgspec.Struct, gc=False, eq=False):
    """A request on its way, or being answered.

    Attributes:
        uncached: tokens of its prompt that its replica had to compute, as far as was known.
        tokens: of its whole prompt.
        stage: what it still counts for.
        background: whether it is behind all others, and takes no room from them.
    """

    replica: int
    uncached: int
    tokens: int
    stage: Literal["reading", "answering", "over"] = "reading"
    background: bool = False


class _Others(NamedTuple):
    """What somebody else has sent to a replica."""

    requests: int
    reading: int
    uncached: int


_NONE = _Others(0, 0, 0)


class Loads:
    """Of each replica, by its place. What others send it counts as far as it says so.

    Attributes:
        requests: that are not over.
        reading: those without a token of an answer yet.
        uncached: tokens of their prompts that are to be computed.
        context: tokens of the prompts of those that are being answered: what each of their steps reads.
        background: those of `requests` that were sent from here, are not over, and are behind all others.
        most: requests that it takes on before others are to wait elsewhere; infinity where nothing says it.
    """

    def __init__(self, replicas: int = 0) -> None:
        self.requests = [0] * replicas
        self.reading = [0] * replicas
        self.uncached = [0] * replicas
        self.context = [0] * replicas
        self.background = [0] * replicas
        self.most = [inf] * replicas
        self._others = [_NONE] * replicas

    def add(self) -> None:
        """There is one more replica, in the next place."""
        for each in (self.requests, self.reading, self.uncached, self.context, self.background):
            each.append(0)
        self.most.append(inf)
        self._others.append(_NONE)

    def told(self, replica: int, requests: int, waiting: int, tokens: int) -> None:
        """A replica says how many requests it has, how many of them wait, and how many tokens these have to compute.

        What is more than was sent from here, somebody else has sent.
        """
        before = self._others[replica]
        own = _Others(
            self.requests[replica] - before.requests,
            self.reading[replica] - before.reading,
            self.uncached[replica] - before.uncached,
        )
        after = _Others(max(0, requests - own.requests), max(0, waiting - own.reading), max(0, tokens - own.uncached))
        self._others[replica] = after
        self.requests[replica] = own.requests + after.requests
        self.reading[replica] = own.reading + after.reading
        self.uncached[replica] = own.uncached + after.uncached

    def has_room(self, replica: int) -> bool:
        """Whether it takes on one more."""
        return self.requests[replica] - self.background[replica] < self.most[replica]

    def sent(self, replica: int, tokens: int, hit: int = 0) -> Sent:
        """A request goes there. Its prompt has `tokens`; `hit` of them are in the replica's cache."""
        each = Sent(replica, max(0, tokens - hit), tokens)
        self.requests[replica] += 1
        self.reading[replica] += 1
        self.uncached[replica] += each.uncached
        return each

    def in_background(self, sent: Sent) -> None:
        """What was sent just now is behind all others."""
        sent.background = True
        self.background[sent.replica] += 1

    def answering(self, sent: Sent) -> None:
        """Its first token came. Another time it changes nothing."""
        if sent.stage == "reading":
            self._read(sent)
            self.context[sent.replica] += sent.tokens
            sent.stage = "answering"

    def over(self, sent: Sent) -> None:
        """It has ended, in whatever way. Another time it changes nothing."""
        if sent.stage == "over":
            return
        if sent.stage == "reading":
            self._read(sent)
        else:
            self.context[sent.replica] -= sent.tokens
        self.requests[sent.replica] -= 1
        self.background[sent.replica] -= sent.background
        sent.stage = "over"

    def _read(self, sent: Sent) -> None:
        self.reading[sent.replica] -= 1
        self.uncached[sent.replica] -= sent.uncached
