"""One request's way from the engine to the client: whole or streamed, and what happens when either side goes away."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol, runtime_checkable

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.access.gate import Pass
from penstock.api.handover import offered
from penstock.api.job import Job
from penstock.api.records import RequestRecord
from penstock.api.resumption import comment, first_comment
from penstock.core.errors import DeadlineExceeded, PenstockError
from penstock.core.handover import HANDOVER
from penstock.core.resumption import MARK, TRACK
from penstock.core.usage import USED, Used
from penstock.engine.interface import EngineClient, RequestOutput
from penstock.engine.journal import Journal
from penstock.http.answers import ignored_header
from penstock.http.body import disconnected
from penstock.http.drain import running
from penstock.http.error_bodies import ErrorForm, error_response
from penstock.http.errors import ServerStopping, as_penstock_error
from penstock.observability.metrics import Outcome, outcome_of

# How many outputs of a request with several prompts wait for a slow client before the engine's are merged.
_MERGE_QUEUE = 16
# How many prompts of a request an engine has at a time; others follow as these end.
_MOST_UNDER_WAY = 1024
# A response with more log probabilities of prompts, or numbers of vectors, is put together beside the event loop: these
# many take some milliseconds.
_INLINE_VALUES = 4096

# Tells how many tokens of a request were left out.
CUT_HEADER = b"x-penstock-truncated-tokens"

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies such as nginx must pass events on at once.
    (b"x-accel-buffering", b"no"),
]


class Writer(Protocol):
    """Writes one whole response in the form of its API.

    Attributes:
        id: the response's id.
        errors: how an error before any output is written.
    """

    id: str
    errors: ErrorForm

    @property
    def completion_tokens(self) -> int:
        """Tokens of all samples so far."""

    @property
    def enough(self) -> bool:
        """Whether the response is complete although the engine goes on with some of its samples."""

    @property
    def cut(self) -> int:
        """How many samples are complete although the engine goes on with them."""

    def add(self, output: RequestOutput) -> None:
        """Collect an output. Raises where a sample has failed."""

    def body(self) -> bytes:
        """The body of the whole response, as JSON."""


@runtime_checkable
class StreamWriter(Writer, Protocol):
    """Writes one response as events, or whole.

    Attributes:
        created: when it began, in seconds of the Unix clock.
    """

    created: int

    def chunk(self, output: RequestOutput) -> bytes:
        """The events of one output; empty where it holds nothing to show. Raises where a sample has failed."""

    def end(self) -> bytes:
        """What follows the last output of a stream."""

    def failed(self, error: PenstockError) -> bytes:
        """What ends a stream that has begun and cannot go on."""


class Deadline(msgspec.Struct, frozen=True):
    """When a request has to be finished.

    Attributes:
        at: on the event loop's clock.
        seconds: how long that is from its arrival.
        asked: whether its client has said so, and not the server's configuration.
    """

    at: float
    seconds: float
    asked: bool

    def exceeded(self, tokens: int) -> DeadlineExceeded:
        """The error where it was not, after `tokens` output tokens."""
        whose = "which the request asked for (timeout)" if self.asked else "the most that this server allows"
        reached = f"after {tokens} output tokens" if tokens else "before there was any output"
        return DeadlineExceeded(f"The request's time ran out {reached}: it had {self.seconds:g} s, {whose}.")


class GenerationResponse:
    """An ASGI response that runs a job. When the client goes away, the engine's work on it is aborted."""

    def __init__(
        self,
        engine: EngineClient,
        job: Job,
        writer: Writer,
        admitted: Pass,
        record: RequestRecord,
        deadline: Deadline | None = None,
    ) -> None:
        self._engine = engine
        self._job = job
        self._admitted = admitted
        self._deadline = deadline
        self._writer = writer
        # Vectors are never streamed.
        self._stream = writer if job.stream and isinstance(writer, StreamWriter) else None
        self._record = record
        self._started = self._passed_over = self._handed = False
        self._work: asyncio.Task[None] | None = None
        self._taking = False
        self._stopped = False
        self._cause: PenstockError | None = None
        # Events that are being sent. Where `stop` comes before they are written, they go with the end.
        self._unsent = b""
        # Tokens of each prompt that were in the cache.
        self._cached: dict[int, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs until the response is complete or the client has gone."""
        with running(scope, self):
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = self._work = asyncio.create_task(self._run(scope, receive, send))
        gone = asyncio.ensure_future(disconnected(receive))
        # Cancellation comes from a server that stops at once. This is the outermost call of ours, so it ends here, and
        # the server closes the connection of an incomplete response.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        self._stopped = False
        work.cancel()
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(work, gone, return_exceptions=True)
        # A task that is cancelled before its first step never gets to its end.
        self._leave("cancelled")

    def stop(self) -> bool:
        """Abort the engine's work and end the response with what there is; False where nothing is left to abort."""
        if self._work is None or not self._taking or self._stopped:
            return False
        self._stopped = True
        self._work.cancel()
        return True

    def end_with(self, error: PenstockError) -> None:
        """Abort the engine's work, or begin none, and end with an error, in the stream where that has begun."""
        self._cause = error
        if self._work is not None and self._taking:
            self._work.cancel()

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        outcome: Outcome = "cancelled"
        try:
            # Whatever the reason to leave, closing the generator frees what the engine holds for this request: before
            # anything more is sent, for which a slow reader can let us wait.
            self._handed = self._job.hands_over and not self._job.keep_whole
            if not self._handed:
                async with contextlib.aclosing(outputs_of(self._engine, self._job, self._record.follow)) as outputs:
                    await self._take(outputs, send)
            self._admitted.leave()
            if self._handed:
                await self._hand(send)
            else:
                await (self._send_body(send) if self._stream is None else self._end_stream(self._stream, send))
            if not self._stopped:
                outcome = "completed"
        except Exception as problem:
            self._admitted.leave()
            error = as_penstock_error(problem)
            outcome = outcome_of(error)
            await self._report(error, scope, receive, send)
        finally:
            self._leave(outcome)

    def _leave(self, outcome: Outcome) -> None:
        """The response has ended; only the first call counts."""
        self._admitted.leave()
        self._record.end(outcome, answered=self._started)

    async def _take(self, outputs: AsyncGenerator[RequestOutput], send: Send) -> None:
        """Take all outputs, or those that come before `stop`. Raises DeadlineExceeded, or what `end_with` was told."""
        if self._cause is not None:
            raise self._cause
        self._taking = True
        try:
            async with asyncio.timeout_at(None if self._deadline is None else self._deadline.at) as timer:
                async for output in outputs:
                    if self._is_known(output):
                        continue
                    self._measure(output)
                    # An answer that is complete with its first output is not handed over.
                    self._handed = self._job.hands_over and not output.finished
                    if self._handed and not self._job.tracked:
                        break
                    if self._stream is None:
                        self._writer.add(output)
                        self._record.meter.passed_on(output.deltas, ids=True)
                    else:
                        events = self._chunk(self._stream, output)
                        await self._send_events(send, events)
                        # Now that it is written: a slow reader makes that wait, and sees it then.
                        if events:
                            self._record.meter.passed_on(output.deltas, ids=self._job.return_token_ids)
                    if self._writer.enough or self._handed:
                        break
            self._measure_cut()
        except asyncio.CancelledError:
            if self._cause is not None:
                raise self._cause from None
            if not self._stopped:
                raise
        except TimeoutError:
            if self._deadline is None or not timer.expired():
                raise
            raise self._deadline.exceeded(self._writer.completion_tokens) from None
        finally:
            self._taking = False

    def _chunk(self, writer: StreamWriter, output: RequestOutput) -> bytes:
        """The events of an output, and which tokens are behind them where that is asked for."""
        events = writer.chunk(output)
        if self._job.tracked:
            assert output.seed is not None, "an engine tells it"
            first = b"" if self._started else first_comment(writer.id, writer.created, output.seed)
            events = first + events + comment(output)
        # Where not all tokens are told, what has been used is told with each event.
        if self._job.counted and events and not (self._job.tracked and self._started):
            events += self._used.comment
        return events

    @property
    def _used(self) -> Used:
        """By the answer so far."""
        return Used(self._job.prompt_tokens, sum(self._cached.values()), self._writer.completion_tokens)

    async def _send_events(self, send: Send, events: bytes) -> None:
        self._unsent = events
        # The status is sent with the first output, so that whatever goes wrong before it has its own.
        await self._start(send)
        if events:
            await self._hand_over(send({"type": "http.response.body", "body": events, "more_body": True}))
            self._unsent = b""

    async def _end_stream(self, writer: StreamWriter, send: Send) -> None:
        await self._start(send)
        body = self._unsent + writer.end() + (self._used.comment if self._job.counted else b"")
        await self._hand_over(send({"type": "http.response.body", "body": body, "more_body": False}))

    async def _send_body(self, send: Send) -> None:
        long = self._job.values > _INLINE_VALUES
        body = await asyncio.to_thread(self._writer.body) if long else self._writer.body()
        self._started = True
        further = [*_ignored(self._job), *_cut(self._job), *([self._used.header] if self._job.counted else ())]
        await self._hand_over(_send_whole(send, body, further))

    async def _hand(self, send: Send) -> None:
        """Say where another server gets what was computed: behind the first token's events, or with nothing else."""
        offer = offered(self._job, self._engine, sum(self._cached.values()))
        if self._started:
            body = self._unsent + MARK + offer.comment + b"\n\n"
            await self._hand_over(send({"type": "http.response.body", "body": body, "more_body": False}))
            return
        self._started = True
        await self._hand_over(_send_whole(send, b"{}", [(HANDOVER, offer.value)]))

    async def _hand_over(self, sending: Awaitable[None]) -> None:
        self._record.account.sending = time.monotonic()
        await sending
        self._record.account.sent()

    async def _start(self, send: Send) -> None:
        if not self._started:
            headers = [*_STREAM_HEADERS, *_ignored(self._job)]
            if self._job.tracked:
                headers.append((TRACK, b"1"))
            if self._job.counted:
                headers.append((USED, b"events"))
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            self._started = True

    async def _report(self, error: PenstockError, scope: Scope, receive: Receive, send: Send) -> None:
        self._record.failed(error, 200 if self._started else self._writer.errors.status(error))
        if self._started and self._job.tracked and isinstance(error, ServerStopping):
            # The connection is closed, as of each answer that is not complete, and another server goes on.
            return
        if self._started and self._stream is not None:
            body = self._unsent + self._stream.failed(error)
            await send({"type": "http.response.body", "body": body, "more_body": False})
        else:
            await error_response(error, self._writer.errors)(scope, receive, send)

    def _is_known(self, output: RequestOutput) -> bool:
        """Whether it is what the client has got from another server: the first output of a stream that goes on."""
        if self._stream is None or self._job.begun is None or not self._job.begun.tokens or self._passed_over:
            return False
        self._passed_over = True
        self._stream.chunk(output)
        for delta in output.deltas:
            self._admitted.gained(delta.index, len(delta.token_ids), ended=False)
        return True

    def _measure(self, output: RequestOutput) -> None:
        if self._job.offer is not None:
            # What was pulled is no hit: another server has computed it for this request.
            output.cached_tokens = self._job.offer.cached
        tokens, samples = 0, self._job.params[0].n if self._job.params else 1
        prompt = output.deltas[0].index // samples
        self._cached[prompt] = output.cached_tokens
        if self._job.kv_policy is not None:
            self._record.dropped(prompt, output.dropped_tokens, self._job.kv_policy.kind)
        for delta in output.deltas:
            tokens += len(delta.token_ids)
            self._admitted.gained(delta.index, len(delta.token_ids), ended=delta.ending is not None)
            if delta.ending is not None:
                self._record.finished(delta.ending.reason)
        self._record.meter.tokens(tokens)

    def _measure_cut(self) -> None:
        """Count the choices whose answers are complete, although the engine would have gone on."""
        for _ in range(self._writer.cut):
            self._record.finished("stop")


def outputs_of(
    engine: EngineClient, job: Job, follow: Callable[[Journal], None] | None = None
) -> AsyncGenerator[RequestOutput]:
    """The outputs of all prompts as they come; those of prompt p have sample indices from p·n on.

    `follow` is given the journal of each.
    """
    if job.pooling is not None:
        samples = 1
        nothing = [0] * len(job.prompts)
        unseen, seconds = [text.unseen for text in job.late] or nothing, job.seconds or nothing
        sources = [
            engine.embed(
                prompt,
                job.pooling,
                pooled_from=job.pooled_from,
                unseen=less,
                second_from=second,
                standing=job.standing,
                follow=follow,
            )
            for prompt, less, second in zip(job.prompts, unseen, seconds, strict=True)
        ]
    else:
        samples = job.params[0].n
        output = () if job.begun is None else job.begun.tokens
        sources = [
            engine.generate(
                prompt,
                params,
                standing=job.standing,
                keep=job.keep,
                keep_whole=job.keep_whole,
                output=output,
                kv_policy=job.kv_policy,
                forced_bos=job.forced_bos,
                offered_at="" if job.offer is None else job.offer.place,
                follow=follow,
            )
            for prompt, params in zip(job.prompts, job.params, strict=True)
        ]
    return sources[0] if len(sources) == 1 else _merged(sources, samples)


async def _merged(sources: list[AsyncGenerator[RequestOutput]], n: int) -> AsyncGenerator[RequestOutput]:
    queue: asyncio.Queue[RequestOutput | Exception | None] = asyncio.Queue(_MERGE_QUEUE)
    under_way = asyncio.Semaphore(_MOST_UNDER_WAY)
    tasks = [
        asyncio.ensure_future(_forward(source, position * n, queue, under_way))
        for position, source in enumerate(sources)
    ]
    running = len(tasks)
    try:
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    source: AsyncGenerator[RequestOutput],
    first_index: int,
    queue: asyncio.Queue[RequestOutput | Exception | None],
    under_way: asyncio.Semaphore,
) -> None:
    """Puts a source's outputs into the queue, then its end: None, or the exception that ended it."""
    try:
        async with under_way, contextlib.aclosing(source):
            async for output in source:
                for delta in output.deltas:
                    delta.index += first_index
                await queue.put(output)
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)


def _ignored(job: Job) -> list[tuple[bytes, bytes]]:
    """The header that names the fields of the request that had no effect."""
    return [(name.encode(), value.encode()) for name, value in ignored_header(job.ignored).items()]


def _cut(job: Job) -> list[tuple[bytes, bytes]]:
    """The header that tells how many tokens of the request were left out, where it asks for that."""
    return [] if job.cut is None else [(CUT_HEADER, str(job.cut).encode())]


async def _send_whole(send: Send, body: bytes, further: list[tuple[bytes, bytes]]) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *further]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
