"""Puts load on a server and notes what comes of it."""

import asyncio
import itertools
import time
from array import array
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator

import msgspec

from penstock.bench.load.answer import VIOLATIONS, Answer
from penstock.bench.load.arrivals import Arrivals, Closed, Open, Replay, arrival_times
from penstock.bench.load.bodies import Bodies, Prompt
from penstock.bench.load.client import Client, Exchange, TransferError
from penstock.bench.load.outcome import End, Outcome
from penstock.bench.load.probe import error_message
from penstock.bench.load.saturation import Sample, is_oversaturated
from penstock.bench.load.workload import Conversation, Turn

_SAMPLE_SECONDS = 0.1
# First requests that are written before they are due.
_AHEAD = 64


class Limits(msgspec.Struct, frozen=True):
    """When a run ends; what has begun then is waited for.

    Attributes:
        conversations, seconds: the most conversations, and the longest time in which they begin.
        think_time: seconds between an answer and the conversation's next turn.
        stop_early: whether a run ends, and is left, when the queue grows without end.
    """

    conversations: int | None = None
    seconds: float | None = None
    think_time: float = 0.0
    stop_early: bool = False


class Run(msgspec.Struct, frozen=True):
    """What was measured.

    Attributes:
        arrivals: how requests came.
        outcomes: of all requests, in the order in which they ended.
        gaps: between chunks with content, of all requests that succeeded.
        seconds: from the beginning to the end of the last request.
        cpu_seconds: that the client itself computed.
        oversaturated: whether the run was ended early, since the queue grew without end.
        gap_counts: how often each of the gaps was measured; None: once.
    """

    arrivals: Arrivals
    outcomes: list[Outcome]
    gaps: array  # type: ignore[type-arg]
    seconds: float
    cpu_seconds: float
    oversaturated: bool = False
    gap_counts: array | None = None  # type: ignore[type-arg]


# Told of each outcome, and how many requests are in flight.
Watch = Callable[[Outcome, int], None]


async def run_load(
    client: Client,
    bodies: Bodies,
    conversations: Iterable[Conversation],
    arrivals: Arrivals,
    limits: Limits,
    seed: int = 0,
    watch: Watch | None = None,
) -> Run:
    """Send the conversations as they are due, wait for all of them, and return what was measured."""
    return await _Runner(client, bodies, limits, watch).run(iter(conversations), arrivals, seed)


class _Prepared(msgspec.Struct, frozen=True):
    """A conversation, with its first request written out."""

    number: int
    conversation: Conversation
    prompt: Prompt
    body: bytes
    due: float


class _Runner:
    def __init__(self, client: Client, bodies: Bodies, limits: Limits, watch: Watch | None) -> None:
        self._client, self._bodies, self._limits, self._watch = client, bodies, limits, watch
        self._outcomes: list[Outcome] = []
        self._gaps = array("f")
        self._tasks: set[asyncio.Task[None]] = set()
        # A request that fails is an outcome; a workload or a program that fails ends the run.
        self._fault: BaseException | None = None
        self._due = 0
        self._in_flight = 0
        self._waiting = 0
        self._start = 0.0

    async def run(self, conversations: Iterator[Conversation], arrivals: Arrivals, seed: int) -> Run:
        conversations = itertools.islice(conversations, self._limits.conversations)
        numbered = enumerate(conversations)
        cpu = time.process_time()
        self._start = time.monotonic()
        if isinstance(arrivals, Closed):
            sending = asyncio.create_task(self._closed(numbered, arrivals.concurrency))
        else:
            sending = asyncio.create_task(self._open(numbered, arrivals, seed))
        stopped = await self._until_done(sending)
        return Run(
            arrivals,
            self._outcomes,
            self._gaps,
            max((outcome.ended for outcome in self._outcomes), default=0.0),
            time.process_time() - cpu,
            stopped,
        )

    async def _until_done(self, sending: "asyncio.Task[None]") -> bool:
        """Wait for the run's end; whether it was ended since the queue grew without end."""
        samples: list[Sample] = []
        try:
            while not (await asyncio.wait([sending], timeout=_SAMPLE_SECONDS))[0]:
                if self._limits.stop_early:
                    samples.append(Sample(self._now(), self._due, self._waiting))
                    # A decision every second or so is soon enough.
                    if len(samples) % 10 == 0 and is_oversaturated(samples):
                        return True
            sending.result()
            return False
        finally:
            # Nothing is left to do, unless the run is left early.
            leaving = [sending, *self._tasks]
            for task in leaving:
                task.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)

    async def _closed(self, conversations: Iterator[tuple[int, Conversation]], concurrency: int) -> None:
        async def stream() -> None:
            for number, conversation in conversations:
                ready = self._prepare(number, conversation, 0.0)
                # What it takes to write a request is over before it is due.
                due = self._now()
                if self._is_over(due):
                    return
                await self._converse(msgspec.structs.replace(ready, due=due))

        for _ in range(concurrency):
            self._begin(stream())
        await self._all_tasks()

    async def _open(
        self, conversations: Iterator[tuple[int, Conversation]], arrivals: Open | Replay, seed: int
    ) -> None:
        planned = self._prepared(conversations, arrivals, seed)
        ahead: deque[_Prepared] = deque(itertools.islice(planned, _AHEAD))
        self._start = time.monotonic()
        while ahead and self._fault is None:
            ready = ahead.popleft()
            # What takes time is done before requests are due, while there is time.
            while len(ahead) < _AHEAD and self._now() < ready.due and (following := next(planned, None)) is not None:
                ahead.append(following)
                await asyncio.sleep(0)
            if not ahead and (following := next(planned, None)) is not None:
                ahead.append(following)
            # Once at least, so that answers are read even where sending cannot keep up.
            await asyncio.sleep(max(0.0, ready.due - self._now()))
            while (left := ready.due - self._now()) > 0:
                await asyncio.sleep(left)
            self._begin(self._converse(ready))
        await self._all_tasks()

    def _prepared(
        self, conversations: Iterator[tuple[int, Conversation]], arrivals: Open | Replay, seed: int
    ) -> Iterator["_Prepared"]:
        times = arrival_times(arrivals, seed) if isinstance(arrivals, Open) else None
        for number, conversation in conversations:
            due = next(times) if times is not None else conversation.at * _scale(arrivals)
            if self._is_over(due):
                return
            yield self._prepare(number, conversation, due)

    def _prepare(self, number: int, conversation: Conversation, due: float) -> "_Prepared":
        turn = conversation.turns[0]
        prompt = self._bodies.first(turn)
        return _Prepared(number, conversation, prompt, self._bodies.body(prompt, turn.output), due)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._fault = self._fault or task.exception()

    async def _all_tasks(self) -> None:
        while self._tasks and self._fault is None:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        if self._fault is not None:
            raise self._fault

    def _is_over(self, due: float) -> bool:
        return self._limits.seconds is not None and due >= self._limits.seconds

    def _now(self) -> float:
        return time.monotonic() - self._start

    async def _converse(self, first: "_Prepared") -> None:
        turns, prompt, body, due = first.conversation.turns, first.prompt, first.body, first.due
        for index, turn in enumerate(turns):
            following = turns[index + 1] if index + 1 < len(turns) else None
            answer, ended = await self._ask(first.number, index, turn, body, due, following is not None)
            if following is None or not ended:
                return
            prompt = self._bodies.next(prompt, answer.text, following)
            body = self._bodies.body(prompt, following.output)
            due = self._now() + self._limits.think_time
            if self._limits.think_time:
                await asyncio.sleep(self._limits.think_time)

    async def _ask(
        self, number: int, index: int, turn: Turn, body: bytes, due: float, keep_text: bool
    ) -> tuple[Answer, bool]:
        """Send one request; its answer, and whether the conversation goes on."""
        answer = Answer(self._bodies.choices, turn.cancel_after, keep_text)
        waits = True

        def take(data: bytes, now: float) -> bool:
            nonlocal waits
            leaves = answer.feed(data, now)
            if waits and answer.first is not None:
                self._waiting, waits = self._waiting - 1, False
            return leaves

        self._due, self._waiting, self._in_flight = self._due + 1, self._waiting + 1, self._in_flight + 1
        started, exchange, error = self._now(), None, None
        end, cancelled = End.FAILED, False
        try:
            exchange = await self._client.fetch("POST", self._bodies.path, body, take)
            end, error = _verdict(answer, exchange)
        except TransferError as failure:
            error = (failure.kind, failure.message)
        except asyncio.CancelledError:
            end, cancelled = End.ABANDONED, True
            raise
        finally:
            self._waiting, self._in_flight = self._waiting - waits, self._in_flight - 1
            self._note(
                Outcome(
                    number=number,
                    turn=index,
                    end=end,
                    scheduled=due,
                    started=started,
                    sent=self._since(exchange.sent if exchange is not None else None),
                    first=self._since(answer.first),
                    last=self._since(answer.last),
                    ended=self._now() if exchange is None else exchange.ended - self._start,
                    kind=error[0] if error else None,
                    message=error[1] if error else None,
                    status=exchange.status if exchange is not None else None,
                    asked=turn.output,
                    input_tokens=answer.usage.prompt_tokens if answer.usage else None,
                    cached_tokens=_cached(answer),
                    output_tokens=answer.usage.completion_tokens if answer.usage else None,
                    choices=self._bodies.choices,
                    chunks=answer.chunks,
                    longest_gap=max(answer.gaps) if answer.gaps else None,
                ),
                answer,
                cancelled,
            )
        return answer, end is End.OK

    def _since(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self._start

    def _note(self, outcome: Outcome, answer: Answer, cancelled: bool) -> None:
        self._outcomes.append(outcome)
        if outcome.end is End.OK:
            self._gaps.extend(answer.gaps)
        if self._watch is not None and not cancelled:
            self._watch(outcome, self._in_flight)


def _scale(arrivals: Open | Replay) -> float:
    return arrivals.time_scale if isinstance(arrivals, Replay) else 1.0


def _cached(answer: Answer) -> int | None:
    details = answer.usage.prompt_tokens_details if answer.usage else None
    return details.cached_tokens if details else None


def _verdict(answer: Answer, exchange: Exchange) -> tuple[End, tuple[str, str] | None]:
    """How a request ended whose answer is whole, or was left."""
    if exchange.status != 200:
        return End.FAILED, (f"HTTP {exchange.status}", error_message(exchange.body))
    if not exchange.content_type.lower().startswith("text/event-stream"):
        return End.FAILED, ("not an event stream", f"the content type is {exchange.content_type or 'missing'}")
    if answer.left:
        return (End.FAILED, answer.violation) if answer.violation else (End.CANCELLED, None)
    answer.end()
    error = answer.error or answer.violation
    if error is not None:
        return End.FAILED, error
    return End.OK, None


def is_violation(outcome: Outcome) -> bool:
    """Whether the server broke the protocol."""
    return outcome.kind in VIOLATIONS
