"""An engine in a process of its own, from its start to its end: an asyncio protocol over a unix socket."""

import asyncio
import itertools
import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from penstock.core.ceilings import Ceilings
from penstock.core.config import EngineConfig
from penstock.core.errors import EngineUnavailable, PenstockError, rebuild_error
from penstock.core.events import LoadSnapshot, SampleOutput
from penstock.core.facts import StepFacts, StepTotals
from penstock.core.faults import Fault
from penstock.core.kv_events import KVEvent
from penstock.core.work import ModelWork
from penstock.engine.beside import SharedMemory
from penstock.engine.interface import RequestOutput
from penstock.engine.journal import Mark
from penstock.engine.messages import (
    PROTOCOL_VERSION,
    Abort,
    Arm,
    Failed,
    Flush,
    Flushed,
    FrameBuffer,
    FromEngine,
    Heartbeat,
    Inspect,
    Inspected,
    Pause,
    Progress,
    Ready,
    Refused,
    Start,
    StepOutputs,
    Submit,
    ToEngine,
    encode_frame,
    from_engine_decoder,
    pack_config,
    unpack_outputs,
)
from penstock.engine.outputs import OutputChanged, RequestState
from penstock.engine.record import Record, create_record

STOP_SECONDS = 5.0
EXIT_SECONDS = 1.0
_CHANGED = "The engine failed during this answer, and the next one did not go on as it had begun; send it again."


class EngineLost(Exception):
    """The process has ended, and whatever it was given with it; another one can compute it.

    Attributes:
        computing: whether this was, or may have been, what it computed at its end.
    """

    def __init__(self, *, computing: bool = False) -> None:
        super().__init__()
        self.computing = computing


class Waiter:
    """A request's state and the future that its reader waits on."""

    __slots__ = ("_error", "_future", "state")

    def __init__(self, state: RequestState) -> None:
        self.state = state
        self._future: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    async def next(self) -> RequestOutput:
        """The next output. Raises what ended the request, EngineLost where another engine may compute it."""
        while not self.state.has_output:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            self._future = asyncio.get_running_loop().create_future()
            await self._future
        return self.state.take()

    def wake(self) -> None:
        """There may be something to take."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def fail(self, error: Exception) -> None:
        """Nothing comes any more, and why."""
        self._error = error
        self.wake()


class EngineProcess(asyncio.Protocol):
    """One run of an engine.

    `start` makes the process, `configure` tells it what to build, `ready` waits until it serves. The process ends when
    the socket closes, so it cannot outlive this one.

    Attributes:
        load: the newest snapshot of the engine's load.
        failure: why it can serve no more; None while it can.
        beats: how many messages have shown that it is not stuck: it did something, or has nothing to do.
        totals: of its steps, and of those of the runs before it, which the code that starts it sets.
        clock: seconds on the machine's monotonic clock.
        observe: called with the facts of each step, where it is set.
        changed: called with what changed in the prefix cache, where it is set.
    """

    def __init__(
        self, process: "subprocess.Popen[bytes]", progress: Callable[[int, int], None], record: Record
    ) -> None:
        self._process = process
        self._record = record
        self._progress = progress
        self._frames = FrameBuffer()
        self._waiters: dict[int, Waiter] = {}
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._burial: asyncio.Task[None] | None = None
        self._killed_for = ""
        self._operations = -1
        self._numbers = itertools.count()
        # By the numbers of what was asked.
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.load = LoadSnapshot()
        self.failure: PenstockError | None = None
        self.beats = 0
        self.totals = StepTotals()
        self.observe: Callable[[StepFacts], None] | None = None
        self.changed: Callable[[Sequence[KVEvent]], None] | None = None
        self._work = ModelWork()
        self.ceilings: Ceilings | None = None
        self.clock: Callable[[], float] = time.monotonic

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        progress: Callable[[int, int], None],
        beside: tuple[SharedMemory, int] | None = None,
    ) -> "EngineProcess":
        """Start `command`; behind it stand the descriptors of its end of the socket and of its record.

        With others `beside` it, the descriptor of their memory and its own number follow. It begins with its imports;
        what to build, `configure` says.
        """
        memory = create_record()
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with theirs:
                    passed, more = [theirs.fileno(), memory], list[int]()
                    if beside is not None:
                        passed.append(beside[0].descriptor)
                        more.append(beside[1])
                    arguments = map(str, (*passed, *more))
                    process = subprocess.Popen([*command, *arguments], pass_fds=passed, start_new_session=True)
                record = Record.attach(memory)
                loop = asyncio.get_running_loop()
                _, engine = await loop.create_unix_connection(lambda: cls(process, progress, record), sock=ours)
            except BaseException:
                # The process, if there is one already, ends with the socket.
                ours.close()
                raise
        finally:
            os.close(memory)
        return engine

    @property
    def process_id(self) -> int:
        """The id of the engine's process."""
        return self._process.pid

    def now(self) -> Mark:
        """This moment, and what was done until it."""
        return Mark(self.clock(), self.totals)

    def configure(self, config: EngineConfig) -> None:
        """Tell the process what to build; to be called once."""
        self._send(Start(PROTOCOL_VERSION, pack_config(config)))

    async def ready(self) -> Ready:
        """Wait until the engine serves; raises what kept it from starting."""
        return await asyncio.shield(self._ready)

    async def wait_closed(self) -> None:
        """Until the engine's process has gone."""
        await asyncio.shield(self._closed)

    def kill(self, why: str = "") -> None:
        """End the process at once, whatever state it is in; `why` is what its failure says then."""
        self._killed_for = why
        self._process.kill()

    async def close(self) -> None:
        """End the process: it notices the closed socket at its next step; one that does not is killed."""
        if not self._ready.done():
            # One that starts has nothing to end in order, and a second of imports before it that would notice.
            self.kill()
        if self._transport is not None:
            self._transport.close()
        deadline = time.monotonic() + STOP_SECONDS
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                self._process.kill()
            await asyncio.sleep(0.01)
        if self._transport is not None:
            # How it has ended is being found out, which is over in a moment.
            await self.wait_closed()

    def submit(self, waiter: Waiter) -> None:
        """Have a request computed; its waiter gets what comes of it."""
        request = waiter.state.request
        self._waiters[request.request_id] = waiter
        if self.failure is not None:
            self._end(request.request_id, EngineLost())
        else:
            self._send(Submit(request))

    def leave(self, waiter: Waiter) -> None:
        """No client waits for the request any more; it is aborted unless the engine is done with it."""
        request_id = waiter.state.request.request_id
        if self._waiters.pop(request_id, None) is not None and not waiter.state.closed and self.failure is None:
            self._send(Abort(request_id))

    def arm(self, fault: Fault) -> None:
        """Let something go wrong; see `Arm`."""
        self._send(Arm(fault))

    def pause(self, after_steps: int | None) -> None:
        """Have nothing computed after a number of steps, or go on; see `Pause`."""
        self._send(Pause(after_steps))

    async def inspect(self) -> str | None:
        """Which invariant of the engine's books is broken; None where all hold. Raises EngineLost where it has gone."""
        problem: str | None = await self._ask(Inspect(next(self._numbers)))
        return problem

    async def flush(self, seconds: float) -> bool:
        """Whether all is written beyond the pool, which takes so long at most; see `Flush`. Raises EngineLost."""
        return bool(await self._ask(Flush(next(self._numbers), seconds)))

    async def _ask(self, question: Inspect | Flush) -> Any:
        answer = self._answers[question.number] = asyncio.get_running_loop().create_future()
        try:
            if self.failure is not None:
                raise EngineLost
            self._send(question)
            return await answer
        finally:
            del self._answers[question.number]

    def _answered(self, number: int, answer: object) -> None:
        if number in self._answers and not self._answers[number].done():
            self._answers[number].set_result(answer)

    def _send(self, message: ToEngine) -> None:
        if self._transport is None:
            raise EngineUnavailable("The engine is not connected.")
        self._transport.write(encode_frame(message))

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, as asyncio asks for."""
        # A socket pair gives a stream transport; uvloop's does not derive from asyncio's class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take in what the engine sent."""
        for body in self._frames.feed(data):
            self._receive(from_engine_decoder.decode(body))

    def _receive(self, message: FromEngine) -> None:
        match message:
            case StepOutputs():
                self.beats += 1
                self.load = message.load
                if message.step is not None:
                    self._note(message.step)
                for request_id, seconds in message.prepared:
                    if request_id in self._waiters:
                        self._waiters[request_id].state.prepared(seconds)
                now = self.now()
                for event in unpack_outputs(message):
                    self._deliver(event, now)
                if message.changes and self.changed is not None:
                    self.changed(message.changes)
            case Heartbeat():
                self.beats += not message.busy or message.progress != self._operations
                self._operations = message.progress
            case Refused():
                self._end(message.request_id, rebuild_error(message.code, message.message, message.param))
            case Inspected(number, problem):
                self._answered(number, problem)
            case Flushed(number, done):
                self._answered(number, done)
            case Progress():
                self.beats += 1
                self._progress(message.done, message.total)
            case Ready():
                self.beats += 1
                if message.version != PROTOCOL_VERSION:
                    self._fail(EngineUnavailable("The engine process is of another version of Penstock."))
                    self.kill()
                elif not self._ready.done():
                    self._work, self.ceilings = message.work, message.ceilings
                    self._ready.set_result(message)
            case Failed():
                self._fail(rebuild_error(message.code, message.message))
                # It ends by itself, unless that fails too.
                asyncio.get_running_loop().call_later(STOP_SECONDS, self.kill)

    def _note(self, step: StepFacts) -> None:
        """Keep what a step did, where it belongs."""
        before = self.totals
        self.totals = before.add(step, self._work.of(step))
        waiters = self._waiters
        for admission in step.admissions:
            if admission.request_id in waiters:
                waiters[admission.request_id].state.journal.admission(admission, step, before)
        for fetched in step.fetched:
            if fetched.request_id in waiters:
                waiters[fetched.request_id].state.journal.fetched(fetched, step, self.totals)
        for chunk in step.chunks:
            if chunk.request_id in waiters:
                waiters[chunk.request_id].state.journal.chunk(chunk, step)
        for request_id in step.preempted:
            if request_id in waiters:
                waiters[request_id].state.journal.preemption(step)
        for drafts in step.drafts:
            if drafts.request_id in waiters:
                waiters[drafts.request_id].state.journal.drafts(drafts)
        if self.observe is not None:
            self.observe(step)

    def _deliver(self, event: SampleOutput, now: Mark) -> None:
        waiter = self._waiters.get(event.request_id)
        if waiter is None:
            return
        try:
            waiter.state.push(event, now)
        except OutputChanged:
            self._send(Abort(event.request_id))
            self._end(event.request_id, EngineUnavailable(_CHANGED))
        else:
            waiter.wake()

    def _end(self, request_id: int, error: Exception) -> None:
        waiter = self._waiters.pop(request_id, None)
        if waiter is not None:
            waiter.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine has gone: all who wait for it are told."""
        known = self.failure
        self._fail(EngineUnavailable("The engine process has ended."))
        self._burial = asyncio.get_running_loop().create_task(self._bury(known))

    async def _bury(self, known: PenstockError | None) -> None:
        """Find out how the process has ended, which users want to know, unless it has said so itself."""
        # The socket closes a moment before that can be asked.
        deadline = time.monotonic() + EXIT_SECONDS
        while (status := self._process.poll()) is None and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        if status is None:
            self._process.kill()
            cause = "The engine process closed its connection."
        elif self._killed_for:
            cause = self._killed_for
        elif status < 0:
            cause = f"The engine process was killed by signal {-status}; 9 is what the kernel sends when memory is out."
        else:
            cause = f"The engine process ended with exit status {status}."
        self.failure = known or EngineUnavailable(cause)
        self._end_start(self.failure)
        self._closed.set_result(None)

    def _fail(self, error: PenstockError) -> None:
        """Nothing can be computed any more. What has not even begun waits until the cause is known."""
        if self.failure is None:
            self.failure = error
        suspects = self._record.suspects()
        for request_id in list(self._waiters):
            self._end(request_id, EngineLost(computing=suspects is None or request_id in suspects))
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(EngineLost())

    def _end_start(self, error: PenstockError) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
            # Perhaps nothing waits any more; then this must not be reported as an exception that was lost.
            self._ready.exception()
