"""Where simulated requests come from: a list of times, the ends of others, conversations."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from penstock.core.request import Request
from penstock.simulation.loop import Arrival


class Ended(NamedTuple):
    """A request that has ended, and the token that its output consists of; None where it has no output."""

    request_id: int
    token: int | None = None


class Source(Protocol):
    """Requests in ascending order of time."""

    @property
    def due(self) -> float:
        """When the next one comes, as far as it is known; infinite where none does before others have ended."""

    def take(self) -> Arrival:
        """The request that is due, and when it comes."""

    def ended(self, at: float, ended: Sequence[Ended]) -> None:
        """Of those that were taken, some have ended."""


class Given:
    """Requests whose times are known before."""

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        self._coming = iter(arrivals)
        self._next = next(self._coming, None)

    @property
    def due(self) -> float:
        """See `Source`."""
        return inf if self._next is None else self._next.at

    def take(self) -> Arrival:
        """See `Source`."""
        arrival, self._next = self._next, next(self._coming, None)
        assert arrival is not None, "none is due"
        return arrival

    def ended(self, at: float, ended: Sequence[Ended]) -> None:
        """See `Source`; their times do not depend on it."""


class ClosedLoop:
    """A number of requests at a time: each that ends is followed by another.

    The next one comes `pause` seconds behind the last step, and those that begin together come `apart` seconds one
    behind the other.
    """

    def __init__(self, requests: Iterable[Request], concurrency: int, pause: float = 0.0, apart: float = 0.0) -> None:
        self._requests = iter(requests)
        self._next = next(self._requests, None)
        self._pause, self._apart = pause, apart
        self._due = [place * apart for place in range(concurrency)]

    @property
    def due(self) -> float:
        """See `Source`."""
        return self._due[0] if self._due and self._next is not None else inf

    def take(self) -> Arrival:
        """See `Source`."""
        request, self._next = self._next, next(self._requests, None)
        assert request is not None, "none is due"
        return Arrival(heappop(self._due), request)

    def ended(self, at: float, ended: Sequence[Ended]) -> None:
        """See `Source`."""
        for place in range(len(ended)):
            heappush(self._due, at + self._pause + self._apart * place)


class Turn(NamedTuple):
    """What is asked after an answer: tokens of the prompt behind all before it, and of the output."""

    input: int
    output: int


class _Open(NamedTuple):
    """A turn that comes or is being answered, and those behind it."""

    request: Request
    turns: Sequence[Turn]
    session: str


class Conversations:
    """Requests that go on, each turn with all before it in its prompt.

    Args:
        first: first turns, whose ids are below `further_ids`. A conversation ends for it with the last turn.
        turns: the further turns of a conversation, by the id of the first.
        pause: seconds from an answer's last step to the next turn.
        content: tokens of a turn that are no other's, from its id and their number.
    """

    def __init__(
        self,
        first: Source,
        turns: Callable[[int], Sequence[Turn]],
        pause: float,
        further_ids: int,
        content: Callable[[int, int], list[int]],
    ) -> None:
        self._first, self._turns = first, turns
        self._pause, self._content = pause, content
        self._ids = count(further_ids)
        # Turns that are being answered, with those behind them; and those that will come.
        self._open: dict[int, _Open] = {}
        self._due: list[tuple[float, int]] = []

    @property
    def due(self) -> float:
        """See `Source`."""
        return min(self._first.due, self._due[0][0] if self._due else inf)

    def take(self) -> Arrival:
        """See `Source`."""
        if self._due and self._due[0][0] <= self._first.due:
            at, number = heappop(self._due)
            return Arrival(at, self._open[number].request, self._open[number].session)
        arrival = self._first.take()
        number = arrival.request.request_id
        session = str(number)
        self._open[number] = _Open(arrival.request, self._turns(number), session)
        return arrival._replace(session=session)

    def ended(self, at: float, ended: Sequence[Ended]) -> None:
        """See `Source`."""
        over = []
        for each in ended:
            request, turns, session = self._open.pop(each.request_id)
            if not turns:
                over.append(each)
                continue
            number = next(self._ids)
            following = self._following(number, request, each.token, turns[0])
            self._open[number] = _Open(following, turns[1:], session)
            heappush(self._due, (at + self._pause, number))
        self._first.ended(at, over)

    def _following(self, number: int, before: Request, token: int | None, turn: Turn) -> Request:
        answer = [] if token is None else [token] * (before.sampling.max_tokens or 0)
        return replace(
            before,
            request_id=number,
            prompt_token_ids=[*before.prompt_token_ids, *answer, *self._content(number, turn.input)],
            sampling=replace(before.sampling, max_tokens=turn.output),
        )
