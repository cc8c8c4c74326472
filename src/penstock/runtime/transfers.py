"""A transfer engine in a process beside this one (`transfer_process.py`), asked within some seconds.

Where it does not answer in time, that read has failed, and others go on. A process that ends or hangs is replaced by
another one; meanwhile nothing is read by it.
"""

import contextlib
import logging
import secrets
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from penstock.core.handover import Transport
from penstock.parallel.framing import receive, with_length
from penstock.runtime.beside import start_beside
from penstock.runtime.health import Health
from penstock.runtime.offer_cells import Cells
from penstock.runtime.partner_wire import Reach
from penstock.runtime.transfer_engines import is_installed
from penstock.runtime.transfer_process import MOST_QUESTION, Begun, Read, Refused, Setup, encode

logger = logging.getLogger("penstock.handover")

# For a process to say that it works, for a read, and for the answer that it has failed.
_START_SECONDS, _READ_SECONDS, _ANSWER_SECONDS = 60.0, 2.0, 4.0
# A process hangs that has not answered a question for so long.
_HUNG_SECONDS = 30.0
_NAME_BYTES = 16
# Of why something failed.
_MOST_ANSWER = 1 << 16
# A place that no packet goes to (RFC 5737): the machine says which of its addresses it would send from.
_ELSEWHERE = ("192.0.2.1", 9)
_begun: "msgspec.msgpack.Decoder[Begun | Refused]" = msgspec.msgpack.Decoder(Begun | Refused)


class TransferFailed(OSError):
    """Something was not read, or no engine is there that reads."""


@dataclass(slots=True, eq=False)
class _Running:
    """A process that works.

    Attributes:
        lanes: for questions, each at most one thread's at a time; those that are `idle`.
        late: when lanes were asked whose answers have not come in time (`time.monotonic`).
        has_ended: what comes back is not used again.
    """

    process: "subprocess.Popen[bytes]"
    control: socket.socket
    lanes: list[socket.socket]
    idle: list[int]
    reach: Reach
    late: dict[int, float] = field(default_factory=dict)
    has_ended: bool = False

    def close(self) -> None:
        """Nothing more is asked; threads that have asked close their lanes themselves."""
        self.has_ended = True
        for end in (self.control, *(self.lanes[each] for each in (*self.idle, *self.late))):
            end.close()
        self.idle.clear()

    def look(self, now: float) -> None:
        """Use lanes again whose late answers are there; they would be taken for the next ones.

        Until then an engine may write to a lane's cell.
        """
        for lane, since in tuple(self.late.items()):
            waiting = select.poll()
            waiting.register(self.lanes[lane], select.POLLIN)
            try:
                if waiting.poll(0):
                    receive(self.lanes[lane], _MOST_ANSWER, now + _ANSWER_SECONDS)
                    del self.late[lane]
                    self.idle.append(lane)
                elif now - since > _HUNG_SECONDS:
                    self.process.kill()
            except (OSError, ValueError):
                self.process.kill()


class Transfers:
    """A transfer engine for the memory of some cells: others read what is in them, or it reads slots into them.

    May be used on several threads. Its process ends with this one.

    Attributes:
        transport: whose engine.
    """

    def __init__(self, transport: Transport, cells: Cells, host: str = "", *, serves: bool) -> None:
        """`serves`: others read, and reach this machine at the `host`. Else each cell takes one slot at a time; a
        partner that hangs holds some of them for a while, so that there are more than reads at a time.

        Raises ImportError where the engine is not installed, TransferFailed where it cannot start.
        """
        if not is_installed(transport):
            raise ImportError(transport)
        self.transport: Transport = transport
        self._cells, self._host, self._serves = cells, host or _own_address(), serves
        self._lock = threading.Lock()
        self._running: _Running | None = self._started()
        self._is_closed = False
        so = "blocks go over TCP until it can"
        self._health = Health(f"The engine of --kv-transport {transport}", "used", so, (TransferFailed,))
        threading.Thread(target=self._keep, name="penstock-transfers", daemon=True).start()

    @property
    def reach(self) -> Reach | None:
        """How engines of others read the cells; None while none runs here."""
        running = self._running
        return None if running is None else running.reach

    @property
    def process_id(self) -> int | None:
        """Of the engine's process; None while none runs."""
        running = self._running
        return None if running is None else running.process.pid

    def read(self, reach: Reach, start: int, size: int) -> bytes:
        """Bytes from `start` of another one's memory on. Raises TransferFailed, after some seconds at most."""
        if not 0 <= size <= self._cells.size or start < 0:
            raise TransferFailed(f"{size} bytes at {start} are no slot")
        with self._lane() as (running, lane):
            self._ask(running, lane, Read(reach, start, self._cells.start(lane), size))
            return self._cells.get(lane, size)

    def close(self) -> None:
        """End the process for good."""
        with self._lock:
            self._is_closed = True
            if self._running is not None:
                self._running.process.kill()

    @contextlib.contextmanager
    def _lane(self) -> Iterator[tuple[_Running, int]]:
        """One for the block."""
        with self._lock:
            running = self._running
            if running is not None:
                running.look(time.monotonic())
            if running is None or not running.idle:
                raise TransferFailed("no engine is free here")
            lane = running.idle.pop()
        try:
            yield running, lane
        finally:
            with self._lock:
                if running.has_ended:
                    running.lanes[lane].close()
                elif lane not in running.late:
                    running.idle.append(lane)

    def _ask(self, running: _Running, lane: int, question: Read) -> None:
        end, asked = running.lanes[lane], time.monotonic()
        try:
            end.settimeout(_ANSWER_SECONDS)
            end.sendall(with_length(encode(question)))
            answer = receive(end, _MOST_ANSWER, asked + _ANSWER_SECONDS)
        except TimeoutError:
            # It may wait for that one alone: others are read from on other lanes.
            with self._lock:
                running.late[lane] = asked
            raise TransferFailed("the engine does not answer in time") from None
        except (OSError, ValueError) as error:
            running.process.kill()
            raise TransferFailed(f"the engine does not answer: {error}") from error
        if answer is None:
            raise TransferFailed("the engine's process has ended")
        if answer:
            raise TransferFailed(answer.decode(errors="replace"))

    def _keep(self) -> None:
        """Start another process where one has ended, until this is closed."""
        while (running := self._running) is not None:
            running.process.wait()
            with self._lock:
                self._running = None
                running.close()
            while self._running is None and not self._is_closed:
                self._health.failed(TransferFailed("its process has ended"))
                time.sleep(self._health.seconds_left)
                self._begin_again()

    def _begin_again(self) -> None:
        try:
            running = self._started()
        except TransferFailed as error:
            logger.debug("the engine of --kv-transport %s does not start: %s", self.transport, error)
            return
        with self._lock:
            self._running = running
            if self._is_closed:
                running.process.kill()
        self._health.worked()

    def _started(self) -> _Running:
        """A process that works. Raises TransferFailed."""
        lanes = 0 if self._serves else self._cells.count
        name, memory = secrets.token_hex(_NAME_BYTES), self._cells.place[1]
        ours, theirs, process = list[socket.socket](), list[socket.socket](), None
        try:
            for _ in range(1 + lanes):
                mine, its = socket.socketpair()
                ours.append(mine)
                theirs.append(its)
            control, *descriptors = [each.fileno() for each in theirs]
            setup = Setup(
                self.transport,
                name,
                self._host,
                memory,
                self._cells.total,
                control,
                descriptors,
                _READ_SECONDS,
                self._serves,
            )
            process = start_beside(
                "penstock.runtime.transfer_process",
                [msgspec.json.encode(setup)],
                [memory, control, *descriptors],
                logger,
            )
            for each in theirs:
                each.close()
            found = self._said(ours[0])
        except (OSError, ValueError, msgspec.DecodeError) as error:
            for each in (*ours, *theirs):
                each.close()
            if process is not None:
                process.kill()
                process.wait()
            raise error if isinstance(error, TransferFailed) else TransferFailed(str(error)) from error
        return _Running(process, ours[0], ours[1:], list(range(lanes)), found)

    def _said(self, control: socket.socket) -> Reach:
        """What a process says when it begins. Raises TransferFailed."""
        content = receive(control, MOST_QUESTION, time.monotonic() + _START_SECONDS)
        if content is None:
            raise TransferFailed("the engine's process ends at once")
        match _begun.decode(content):
            case Begun(reach):
                return reach
            case Refused(why):
                raise TransferFailed(why)


def _own_address() -> str:
    """This machine's address, as most others reach it; its loopback where it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        try:
            end.connect(_ELSEWHERE)
        except OSError:
            return "127.0.0.1"
        return str(end.getsockname()[0])
