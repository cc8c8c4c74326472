"""The engine process: a loop over one unix socket and one engine core."""

import contextlib
import gc
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from msgspec.structs import replace

from penstock.core.ceilings import Ceilings
from penstock.core.config import EngineConfig, Reason
from penstock.core.errors import EngineError, PenstockError
from penstock.core.events import SampleOutput
from penstock.core.request import Request
from penstock.core.work import ModelWork
from penstock.engine.beside import Alone, Share
from penstock.engine.contention import CpuWait
from penstock.engine.core import EngineCore
from penstock.engine.ends import exit_on_hang_up
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
    StageTime,
    Start,
    Submit,
    ToEngine,
    encode_frame,
    pack_outputs,
    to_engine_decoder,
    unpack_config,
)
from penstock.engine.preparation import Preparations
from penstock.engine.record import Record
from penstock.text.tokenizer import Tokenizer

RECEIVE_BYTES = 1 << 20
PROGRESS_INTERVAL = 0.05
# Once nothing has happened for this time, there is time for what can wait.
IDLE_SECONDS = 1.0
HEARTBEAT_SECONDS = 1.0
_LOST_STATUS = 70


@dataclass(frozen=True)
class BuiltEngine:
    """An engine core and what its users must know of it.

    Attributes:
        progress: rises with every operation of a step, on whichever thread it is asked.
        work: what steps must do at least.
        ceilings: what the machine was measured to do; None where it was not.
        tokenizer: None where requests are token ids.
        settled: settings that were estimates until something was measured, and why they are what they are.
        identity: another engine with the same gives the same bits, if its weights are the same; empty where it may not.
        form: of blocks that are handed over: another with the same takes them, if its weights are the same.
        offers_at: where it offers blocks of prompts to replicas that decode; empty: nowhere.
        share: of the machine, beside other engines.
        flush: waits until what was begun to be written beyond the pool is there, for a number of seconds at
            most; whether it is so.
        close: ends the processes that compute with this one.
        when_lost: has its argument called, on another thread, once a process has ended that computes with this one,
            with what became of it. What this one computes then fails.
    """

    core: EngineCore
    progress: Callable[[], int]
    vocab_size: int
    tokenizer: Tokenizer | None
    stages: list[StageTime]
    notes: list[str]
    work: ModelWork = ModelWork()
    ceilings: Ceilings | None = None
    settled: list[Reason] = field(default_factory=list)
    identity: str = ""
    form: str = ""
    offers_at: str = ""
    share: Share = field(default_factory=Alone)
    flush: Callable[[float], bool] = lambda seconds: True
    close: Callable[[], None] = lambda: None
    when_lost: Callable[[Callable[[str], None]], None] = lambda _call: None


EngineBuilder = Callable[[EngineConfig, Callable[[int, int], None]], BuiltEngine]


class Connection:
    """The engine's end of the socket. Closing the other end ends the engine."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._socket.setblocking(True)
        self._frames = FrameBuffer()
        self._sending = threading.Lock()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._woken, self._bell = socket.socketpair()
        self._woken.setblocking(False)
        self._bell.setblocking(False)
        self._poll.register(self._woken, select.POLLIN)

    def exit_on_hang_up(self) -> None:
        """End this process once the other end is closed, whatever it is doing."""
        threading.Thread(target=exit_on_hang_up, args=(self._socket.fileno(),), daemon=True).start()

    @property
    def has_message(self) -> bool:
        """Whether one has begun to arrive, so that `receive` waits for the rest of it at most."""
        return bool(self._poll.poll(0))

    def receive(self, *, wait: bool, seconds: float | None = None) -> list[ToEngine]:
        """The messages that have arrived; waits for some if asked, until `wake` is called or `seconds` have passed.

        Raises EOFError where the other end is closed.
        """
        messages: list[ToEngine] = []
        longest = 0 if not wait else None if seconds is None else seconds * 1000
        while ready := self._poll.poll(longest):
            longest = 0
            for descriptor, _ in ready:
                if descriptor == self._woken.fileno():
                    self._woken.recv(RECEIVE_BYTES)
                    continue
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise EOFError
                messages.extend(to_engine_decoder.decode(body) for body in self._frames.feed(data))
        return messages

    def wake(self) -> None:
        """Let `receive` return, on whichever thread it waits."""
        # A full socket has woken it already.
        with contextlib.suppress(BlockingIOError):
            self._bell.send(b"!")

    def send(self, message: FromEngine) -> None:
        """Send one message, waiting for the reader where it is behind. May be called on any thread."""
        frame = encode_frame(message)
        with self._sending:
            self._socket.sendall(frame)


def run_worker(connection: Connection, record: Record, build: EngineBuilder) -> int:
    """Build an engine from the first message and serve until the other end closes; returns an exit status."""
    connection.exit_on_hang_up()
    try:
        built = _start(connection, build)
        loop = _Loop(connection, built.core, record, CpuWait(), built.share, built.flush)
        built.when_lost(_exit_as_lost)
        threading.Thread(target=_beat, args=(connection, loop, built.progress), daemon=True).start()
        # What is there now stays, torch's modules among it, and takes long to look through.
        gc.freeze()
        loop.run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    except PenstockError as error:
        with contextlib.suppress(OSError):
            connection.send(Failed(error.code, error.message))
        return error.exit_status
    except Exception as error:
        # Whatever it was, users must see the cause and not only that a process is gone.
        traceback.print_exc()
        with contextlib.suppress(OSError):
            connection.send(Failed(EngineError.code, f"The engine failed: {type(error).__name__}: {error}"))
        return 1


def _exit_as_lost(why: str) -> None:
    """End the process, since another one has gone without which it computes nothing; both are started anew."""
    print(f"penstock: {why} The engine ends with it.", file=sys.stderr, flush=True)
    os._exit(_LOST_STATUS)


def _beat(connection: Connection, loop: "_Loop", progress: Callable[[], int]) -> None:
    """Tell the other end again and again how far the engine is, whatever the loop is doing."""
    with contextlib.suppress(OSError):
        while True:
            connection.send(Heartbeat(progress(), loop.busy))
            time.sleep(HEARTBEAT_SECONDS)


def _start(connection: Connection, build: EngineBuilder) -> BuiltEngine:
    first = connection.receive(wait=True)[0]
    if not isinstance(first, Start) or first.version != PROTOCOL_VERSION:
        raise EngineError("The engine was started by another version of Penstock; start both from one installation.")
    last_sent = 0.0

    def report(done: int, total: int) -> None:
        nonlocal last_sent
        now = time.monotonic()
        if done == total or now - last_sent > PROGRESS_INTERVAL:
            last_sent = now
            connection.send(Progress(done, total))

    built = build(unpack_config(first.config), report)
    connection.send(
        Ready(
            version=PROTOCOL_VERSION,
            limits=built.core.scheduler.limits,
            vocab_size=built.vocab_size,
            stages=built.stages,
            notes=built.notes,
            work=built.work,
            ceilings=built.ceilings,
            settled=built.settled,
            identity=built.identity,
            form=built.form,
            offers_at=built.offers_at,
        )
    )
    return built


class _Loop:
    """Takes messages, computes a step, sends what came of it; sleeps in the socket while there is nothing to do.

    Attributes:
        busy: whether there is anything to do. Where it may begin no step, that is what was begun before.
    """

    def __init__(
        self,
        connection: Connection,
        core: EngineCore,
        record: Record,
        cpu_wait: CpuWait,
        share: Share | None = None,
        flush: Callable[[float], bool] = lambda seconds: True,
    ) -> None:
        self._connection = connection
        self._core = core
        self._record = record
        self._preparations = Preparations(core.prepare, core.find, connection.wake)
        self._cpu_wait = cpu_wait
        self._share = share or Alone()
        self._flush = flush
        # Seconds that it took to send what came of the newest step.
        self._send_seconds = 0.0
        # What is answered as soon as nothing is computed.
        self._flushes: list[Flush] = []
        # Steps that it may begin until it is paused; None where nothing pauses it.
        self._steps_left: int | None = None
        self._rested = False

    @property
    def busy(self) -> bool:
        if self._steps_left == 0:
            return self._core.is_computing
        return self._core.has_work

    def run(self) -> NoReturn:
        """Ends with EOFError or a broken pipe when the other end closes, and with the error of a step that fails."""
        core, connection = self._core, self._connection
        # Before any step, the size of the pool is of interest.
        connection.send(pack_outputs([], core.snapshot()))
        core.begin_step = self._begin_step
        while True:
            outputs = [output for message in self._receive() for output in self._take(message)]
            prepared = self._take_prepared() if self._preparations.waiting else []
            facts = None
            if self.busy:
                self._rested = False
                self._cpu_wait.begin_step(core.clock())
                outputs += self._step()
                if core.failure is not None:
                    # What this engine holds cannot be trusted any more; another one computes what was lost.
                    raise core.failure
                cpu_wait = self._cpu_wait.since_last(core.clock())
                facts = replace(core.facts, send=self._send_seconds, cpu_wait=cpu_wait)
                core.fail_points.passed("engine.send")
            computed = core.clock()
            changes = core.scheduler.cache.take_events()
            connection.send(pack_outputs(outputs, core.snapshot(), facts, prepared, changes))
            self._send_seconds = core.clock() - computed if facts is not None else 0.0
            self._record.any()
            if self._flushes and not self.busy:
                self._answer_flushes()

    def _answer_flushes(self) -> None:
        """Wait for what was begun to be written; nothing is computed meanwhile."""
        for asked in self._flushes:
            self._connection.send(Flushed(asked.number, self._flush(asked.seconds)))
        self._flushes.clear()

    def _take_prepared(self) -> list[tuple[int, float]]:
        """Queue requests that are ready; with the seconds that this took."""
        prepared = []
        for request, refusal, seconds in self._preparations.take(self._core.clock()):
            self._add(request, refusal)
            prepared.append((request.request_id, seconds))
        return prepared

    def _step(self) -> list[SampleOutput]:
        """Begin a step, or only finish what was begun where none is left."""
        if self._steps_left is None:
            return self._core.step()
        if self._steps_left == 0:
            return self._core.finish_step()
        self._steps_left -= 1
        return self._core.step()

    def _begin_step(self, request_ids: frozenset[int]) -> None:
        """A step computes these requests; whatever ends the engine until it has told of it, they are the reason."""
        self._share.begin_step()
        self._record.only(request_ids.union(self._preparations.waiting))

    def _receive(self) -> list[ToEngine]:
        preparations = self._preparations
        seconds = preparations.seconds_left(self._core.clock()) if preparations.waiting else None
        resting = not self._rested and seconds is None
        if resting:
            seconds = IDLE_SECONDS
        wait = not self.busy
        if wait:
            self._share.rest()
            self._record.only(self._preparations.waiting)
        self._core.fail_points.passed("rank.wait")
        try:
            messages = self._connection.receive(wait=wait, seconds=seconds)
        finally:
            self._record.any()
        if resting and wait and not messages:
            self._rested = not self._core.use_idle_time()
        return messages

    def _take(self, message: ToEngine) -> list[SampleOutput]:
        """Do what a message says; the last outputs of a request that it ends."""
        match message:
            case Submit(request) if self._core.needs_preparation(request):
                try:
                    self._preparations.begin(request, self._core.clock())
                except PenstockError as error:
                    self._add(request, error)
            case Submit(request):
                self._add(request)
            case Abort(request_id):
                self._preparations.drop(request_id)
                return self._core.abort(request_id)
            case Pause(after_steps):
                self._steps_left = after_steps
            case Flush():
                self._flushes.append(message)
            case Inspect(number):
                self._connection.send(Inspected(number, self._core.check()))
            case Arm(fault):
                self._core.fail_points.arm(fault)
        return []

    def _add(self, request: Request, error: PenstockError | None = None) -> None:
        try:
            if error is not None:
                raise error
            self._core.add(request)
        except PenstockError as cause:
            self._core.refuse(request.request_id)
            self._connection.send(Refused(request.request_id, cause.code, cause.message, cause.param))
