"""The client of an engine in another process: an asyncio protocol over a unix socket."""

import asyncio
import contextlib
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import cast

from penstock.core.config import EngineConfig
from penstock.core.errors import EngineUnavailable, PenstockError, rebuild_error
from penstock.core.events import LoadSnapshot, SampleOutput
from penstock.core.plan import Pooling
from penstock.core.request import KeptPrefix, Request
from penstock.core.sampling import SamplingParams
from penstock.engine.intake import Intake
from penstock.engine.interface import ModelInfo, RequestOutput
from penstock.engine.messages import (
    PROTOCOL_VERSION,
    Abort,
    Failed,
    FrameBuffer,
    FromEngine,
    Progress,
    Ready,
    Refused,
    Start,
    StepOutputs,
    Submit,
    ToEngine,
    encode_frame,
    from_engine_decoder,
    unpack_outputs,
)
from penstock.engine.outputs import RequestState
from penstock.text.table import TokenTable

STOP_SECONDS = 5.0
EXIT_SECONDS = 1.0


class _Waiter:
    """A request's state and the future that its reader waits on."""

    __slots__ = ("error", "future", "state")

    def __init__(self, state: RequestState) -> None:
        self.state = state
        self.future: asyncio.Future[None] | None = None
        self.error: PenstockError | None = None

    def wake(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class EngineProcess(asyncio.Protocol):
    """An engine in a process of its own, as its users hold it (`EngineClient`).

    `start` makes the process, `configure` tells it what to build, `ready` waits until it serves. The process ends when
    the socket closes, so it cannot outlive this one.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", progress: Callable[[int, int], None]) -> None:
        self._process = process
        self._progress = progress
        self._frames = FrameBuffer()
        self._waiters: dict[int, _Waiter] = {}
        self._transport: asyncio.Transport | None = None
        self._failure: PenstockError | None = None
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = False
        self._load = LoadSnapshot()
        self._model: ModelInfo | None = None
        self._intake: Intake | None = None
        self._table: TokenTable | None = None

    @classmethod
    async def start(cls, command: Sequence[str], progress: Callable[[int, int], None]) -> "EngineProcess":
        """Start `command` with the descriptor of its end of the socket as its last argument.

        It begins with its imports; what to build, `configure` says.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                descriptor = theirs.fileno()
                process = subprocess.Popen([*command, str(descriptor)], pass_fds=(descriptor,), start_new_session=True)
            loop = asyncio.get_running_loop()
            _, engine = await loop.create_unix_connection(lambda: cls(process, progress), sock=ours)
        except BaseException:
            # The process, if there is one already, ends with the socket.
            ours.close()
            raise
        return engine

    def configure(self, config: EngineConfig) -> None:
        """Tell the process what to build; to be called once."""
        self._send(Start(PROTOCOL_VERSION, config))

    async def ready(self, model: ModelInfo, table: TokenTable | None) -> Ready:
        """Wait until the engine serves; raises what kept it from starting. `table` turns its tokens into text."""
        ready = await self._ready
        self._model, self._table = model, table
        self._intake = Intake(ready.limits, ready.vocab_size, model.eos_token_ids, has_text=table is not None)
        return ready

    async def close(self) -> None:
        """End the process: it notices the closed socket at its next step; one that does not is killed."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()
        deadline = time.monotonic() + STOP_SECONDS
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                self._process.kill()
            await asyncio.sleep(0.01)

    # What users of the engine call.

    @property
    def model(self) -> ModelInfo:
        """The model that is served."""
        if self._model is None:
            raise EngineUnavailable("The engine is still starting.")
        return self._model

    @property
    def load(self) -> LoadSnapshot:
        """The newest snapshot of the engine's load."""
        return self._load

    @property
    def process_id(self) -> int:
        """Of the engine's process."""
        return self._process.pid

    def check_ready(self) -> None:
        """Raise EngineUnavailable with the cause unless requests can be served now."""
        if self._failure is not None:
            raise EngineUnavailable(self._failure.message)
        if self._intake is None:
            raise EngineUnavailable("The engine is still loading the model; try again in a few seconds.")

    def generate(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        keep: tuple[KeptPrefix, ...] = (),
    ) -> AsyncGenerator[RequestOutput]:
        """Submit a request and yield its outputs; see `EngineClient.generate`."""
        return self._outputs(
            lambda intake: intake.request(prompt_token_ids, params, priority=priority, cache_salt=cache_salt, keep=keep)
        )

    def embed(
        self, prompt_token_ids: list[int], pooling: Pooling, *, priority: int = 0, cache_salt: str = ""
    ) -> AsyncGenerator[RequestOutput]:
        """Submit a request for a vector and yield its output; see `EngineClient.embed`."""
        return self._outputs(
            lambda intake: intake.embedding(prompt_token_ids, pooling, priority=priority, cache_salt=cache_salt)
        )

    async def _outputs(self, make: Callable[[Intake], Request]) -> AsyncGenerator[RequestOutput]:
        self.check_ready()
        assert self._intake is not None, "check_ready has seen it"
        request = make(self._intake)
        waiter = _Waiter(RequestState(request, self._table))
        self._waiters[request.request_id] = waiter
        try:
            self._send(Submit(request))
            while True:
                output = await self._next(waiter)
                yield output
                if output.finished:
                    return
        finally:
            del self._waiters[request.request_id]
            if not waiter.state.finished and self._failure is None and waiter.error is None:
                self._send(Abort(request.request_id))

    async def _next(self, waiter: _Waiter) -> RequestOutput:
        while not waiter.state.has_output:
            if waiter.error is not None:
                raise waiter.error
            waiter.future = asyncio.get_running_loop().create_future()
            await waiter.future
        return waiter.state.take()

    def _send(self, message: ToEngine) -> None:
        if self._transport is None:
            raise EngineUnavailable("The engine is not connected.")
        self._transport.write(encode_frame(message))

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # A socket pair gives a stream transport; uvloop's does not derive from asyncio's class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take in what the engine sent."""
        for body in self._frames.feed(data):
            self._receive(from_engine_decoder.decode(body))

    def _receive(self, message: FromEngine) -> None:
        match message:
            case StepOutputs():
                self._load = message.load
                for event in unpack_outputs(message):
                    self._deliver(event)
            case Refused():
                self._end(message.request_id, rebuild_error(message.code, message.message, message.param))
            case Progress():
                self._progress(message.done, message.total)
            case Ready():
                if message.version != PROTOCOL_VERSION:
                    self._fail(EngineUnavailable("The engine process is of another version of Penstock."))
                elif not self._ready.done():
                    self._ready.set_result(message)
            case Failed():
                self._fail(rebuild_error(message.code, message.message))

    def _deliver(self, event: SampleOutput) -> None:
        waiter = self._waiters.get(event.request_id)
        if waiter is not None:
            waiter.state.push(event)
            waiter.wake()

    def _end(self, request_id: int, error: PenstockError) -> None:
        waiter = self._waiters.get(request_id)
        if waiter is not None:
            waiter.error = error
            waiter.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine has gone: nobody waits for it any more."""
        if not self._closing:
            # The socket closes a moment before the process can be asked how it ended, which users want to know.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(EXIT_SECONDS)
        status = self._process.poll()
        if status is None:
            cause = "The engine process closed its connection."
        elif status < 0:
            cause = f"The engine process was killed by signal {-status}; 9 is what the kernel sends when memory is out."
        else:
            cause = f"The engine process ended with exit status {status}."
        self._fail(EngineUnavailable(cause))
        if not self._closed.done():
            self._closed.set_result(None)

    def _fail(self, error: PenstockError) -> None:
        if self._failure is None:
            self._failure = error
        if not self._ready.done():
            self._ready.set_exception(self._failure)
            # Nobody may be waiting any more; then this must not be reported as an exception that was lost.
            self._ready.exception()
        for request_id in list(self._waiters):
            self._end(request_id, EngineUnavailable(self._failure.message))

    async def wait_closed(self) -> None:
        """Until the engine's process has gone."""
        await asyncio.shield(self._closed)
