"""The ranks of an engine: the engine's own process is the first, and starts the others (`python -m …assembly.rank`)."""

import contextlib
import logging
import queue
import select
import socket
import subprocess
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from penstock import __version__
from penstock.assembly.backend import Storage
from penstock.assembly.gathering import Gathered, gather
from penstock.assembly.links import Begun, begin
from penstock.assembly.meeting import met_at
from penstock.core.config import EngineConfig, RanksConfig
from penstock.core.errors import ConfigurationError, EngineError, PenstockError, rebuild_error
from penstock.core.shares import shares
from penstock.engine.fail_points import FailPoints
from penstock.engine.messages import pack_config
from penstock.engine.stops import Stops, stopped_by_signal
from penstock.parallel.choices import Choices
from penstock.parallel.device_ranks import DeviceRanks
from penstock.parallel.leader import LeadingModel, LeadingStorage, Telling, send_to_all
from penstock.parallel.messages import (
    PROTOCOL_VERSION,
    Arm,
    Begin,
    Failed,
    Inbox,
    Loaded,
    Met,
    Pool,
    ProgramName,
    frame,
)
from penstock.parallel.passing import Before
from penstock.parallel.shared import SharedRanks
from penstock.parallel.silence import LOOK_SECONDS, MOST_SILENT, MOST_SILENT_LOADING, Silence
from penstock.parallel.slots import LeadingSlots, RankSlots
from penstock.runtime.parts import Computing
from penstock.stepping.model import Model
from penstock.stepping.storage import PoolStorage, Slots

_WAIT_SECONDS = 5.0
logger = logging.getLogger("penstock.engine")


def of_rank(config: EngineConfig, rank: int) -> EngineConfig:
    """What one rank is to do of what an engine does: its own threads, and keys and values of its own."""
    ranks = config.ranks
    if ranks is None:
        return config
    # Of machines, all are taken to have as many cores.
    beside = len(ranks.ranks_of(0))
    threads = shares(config.threads, beside)[rank % beside].count if config.threads >= beside else 1
    cache = msgspec.structs.replace(config.cache, spec=ranks.specs[rank])
    return msgspec.structs.replace(config, threads=threads, cache=cache, device=config.device_of(rank))


@dataclass(frozen=True, slots=True, eq=False)
class _Follower:
    """Another rank, and this end of the connection to it; its process, where that is on this machine."""

    rank: int
    process: "subprocess.Popen[bytes] | None"
    end_of_socket: socket.socket
    inbox: Inbox

    def ended(self) -> str:
        """How its process ended, in words."""
        status = None
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self.process.wait(_WAIT_SECONDS)
        if status is None:
            return "closed its connection"
        return f"ended with signal {-status}" if status < 0 else f"ended with status {status}"

    def kill(self) -> None:
        """End its process, or hang up on it, with which it ends where it can."""
        if self.process is not None:
            self.process.kill()
        with contextlib.suppress(OSError):
            self.end_of_socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Close this end of the connection, with which its process ends, and wait for that on this machine."""
        self.inbox.close()
        self.end_of_socket.close()
        if self.process is not None:
            self.process.wait()


class Group:
    """The other ranks, as the first one has them. They end when this process does.

    Attributes:
        ranks: this one among those that have parts of the same layers, or of contexts; None: it has all of both.
        tell: tells the others what to do.
        choices: counts of the experts that are chosen.
        least_free: bytes that are left at least on the device of another rank, once all have met.
        points: where something can be made to go wrong in this rank.
    """

    def __init__(
        self, config: EngineConfig, ranks: RanksConfig, alive: Callable[[], None], begun: Begun | None = None
    ) -> None:
        """Have their processes begin to load, which are `begun`, or started here; other machines' are waited for.

        `alive` is called again and again. Raises ConfigurationError and EngineError where these do not come.
        """
        self._lost: Callable[[str], None] = lambda _why: None
        # Why another rank has ended, which may be before somebody is to be told.
        self._why: str | None = None
        self._losing = threading.Lock()
        # What ranks have told since they are watched: that they have done what they were told, or None for an end.
        self._answers: queue.SimpleQueue[Loaded | None] = queue.SimpleQueue()
        self._staged, self._devices = ranks.num_stages > 1, config.device != "cpu"
        self.least_free = 0
        elsewhere = Gathered() if ranks.machines is None else gather(config, ranks, ranks.machines, alive)
        self.choices = Choices(ranks.experts)
        begun = begun or begin(ranks, elsewhere.values, devices=self._devices)
        with begun.opened:
            signs, before = SharedRanks(begun.links.everyone, 0, ranks.size), begun.links.before(0)
            meeting = begun.links.meeting(0)
            self.ranks = None if meeting is None else met_at(meeting, of_rank(config, 0), ranks, 0)
            if self.ranks is not None:
                self.ranks.choices = self.choices.of
            self._before = None if before is None else Before(before)
        self._followers = [
            _Follower(rank, process, end, Inbox(end)) for rank, (process, end) in begun.processes.items()
        ]
        self._followers += [_Follower(rank, None, end, Inbox(end)) for rank, end in sorted(elsewhere.controls.items())]
        # Of each other rank: how often it has shown that it is not stopped, and what it had computed then.
        self._signs = {
            each.rank: _signs_of(each.rank, signs, elsewhere.beats if each.rank in elsewhere.controls else None)
            for each in self._followers
        }
        packed = pack_config(config)
        for each in self._followers:
            _begin(each, packed)
        ends = [each.end_of_socket for each in self._followers]
        self.tell = Telling(send_to_all([end.sendall for end in ends]), frame, self._part)
        meets = {} if self.ranks is None else {"rank.meet": self.ranks.at_meeting}
        self.points = FailPoints(0, meets, lambda fault: self.tell(Arm(fault)))
        self._gone = threading.Event()
        # Where this process ends, its sockets close by themselves.
        others = [*ends, *elsewhere.machines.values(), *filter(None, [before])]
        self._end = weakref.finalize(self, _hang_up, others, self._gone)
        self._end.atexit = False
        self._watcher: threading.Thread | None = None

    def operations_done(self) -> int:
        """Operations that the other ranks have computed so far, as far as is known. May be asked on any thread."""
        return sum(told()[1] for told in self._signs.values())

    @property
    def process_ids(self) -> list[int]:
        """Of the other ranks on this machine, in order."""
        return [each.process.pid for each in self._followers if each.process is not None]

    def led(self, own: Computing, pool: Storage, config: EngineConfig) -> tuple[Computing, Callable[[], Slots]]:
        """What computes together with the others, where `own` is this rank's part with its pool.

        And what makes what copies slots of all their pools out and in, where they have parts of the same layers.
        """
        storage = LeadingStorage(own.storage, self.tell)

        def slots() -> LeadingSlots:
            assert isinstance(self.ranks, SharedRanks) and config.ranks is not None, (
                "ranks have parts of the same layers"
            )
            if pool.layout != "tiles":
                raise ConfigurationError(
                    "This model has keys of a size that is not kept in tiles, so that its ranks cannot give blocks "
                    "to others; leave --role or --tensor-parallel-size out."
                )
            part = RankSlots(pool.slots(), self.ranks, 0, config.ranks.whole, config.ranks.specs)
            return LeadingSlots(part, storage, self.tell)

        led = replace(
            own,
            model=self._leading(own.model, "logits", storage),
            storage=storage,
            encoder=lambda: self._leading(own.encoder(), "states", storage),
            staged=self._staged,
        )
        return led, slots

    def _leading(self, own: Model, name: ProgramName, storage: LeadingStorage) -> LeadingModel:
        return LeadingModel(own, name, storage, self.tell, self.points.passed, self._before, alike=self._devices)

    def led_alone(self, model: Model, encoder: Model, storage: PoolStorage) -> tuple[LeadingModel, LeadingModel]:
        """What computes together with the others over a pool that is there for a while."""
        leading = LeadingStorage(storage, self.tell)
        return self._leading(model, "logits", leading), self._leading(encoder, "states", leading)

    def have_pool(self, blocks: int) -> None:
        """The others have a pool of this number of blocks from now on. Raises EngineError where one cannot."""
        self.tell(Pool(blocks))
        for _ in self._followers:
            if self._answers.get() is None:
                raise EngineError(self._why or "A rank has ended while it made its KV pool.")

    def wait(self, alive: Callable[[], None]) -> None:
        """Wait until all have their weights; `alive` is called again and again. Raises why one cannot go on."""
        try:
            self._hear(alive, "loaded its weights")
            if isinstance(self.ranks, DeviceRanks):
                joining = _Joining(self.ranks)
                told = self._hear(lambda: joining.look(alive), "met the others' devices")
                joining.wait()
                self.least_free = min((each.free for each in told if isinstance(each, Met)), default=0)
        except BaseException:
            for each in self._followers:
                each.kill()
                each.end()
            raise
        # The thread does not keep the group: without it, the others end.
        halts = _Halts(self._followers, self._signs, MOST_SILENT)
        watched = self._followers, weakref.ref(self), self._gone, halts, self._answers
        self._watcher = threading.Thread(target=_watch, args=watched, daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """End the other ranks, and wait for those on this machine. What is computed later fails."""
        self._end()
        if self._watcher is not None:
            self._watcher.join()

    def _hear(self, alive: Callable[[], None], doing: str) -> list[Loaded | Met]:
        """Wait until each has told what it is doing now. Raises why one cannot go on."""
        poll = select.poll()
        waited_for = {each.end_of_socket.fileno(): each for each in self._followers}
        for descriptor in waited_for:
            poll.register(descriptor, select.POLLIN)
        halts = _Halts(self._followers, self._signs, MOST_SILENT_LOADING)
        found: list[Loaded | Met] = []
        while waited_for:
            told = poll.poll(LOOK_SECONDS * 1000)
            for descriptor, _ in told:
                poll.unregister(descriptor)
                found.append(_told_by(waited_for.pop(descriptor), doing))
            if not told and (halted := halts.look()) is not None:
                raise EngineError(f"{halted[1]} while ranks loaded; all end.")
            alive()
        return found

    def when_lost(self, call: Callable[[str], None]) -> None:
        """Have this called, on another thread, once another rank has ended, with what became of it."""
        with self._losing:
            self._lost = call
            why = self._why
        if why is not None:
            call(why)

    def lose(self, why: str) -> None:
        """Another rank has ended: what is computed now, or later, fails."""
        self._part()
        with self._losing:
            self._why, lost = why, self._lost
        lost(why)

    def _part(self) -> None:
        """Let what waits for others end, here and there."""
        if self.ranks is not None:
            self.ranks.part()
        if self._before is not None:
            self._before.part()


def _signs_of(
    rank: int, here: SharedRanks, elsewhere: Mapping[int, tuple[int, int]] | None
) -> Callable[[], tuple[int, int]]:
    """What says how often a rank has shown that it is not stopped, and what operations it had computed then."""
    if elsewhere is not None:
        return lambda: elsewhere.get(rank, (0, 0))
    return lambda: (here.beats(rank), here.done(rank))


class _Halts:
    """Finds ranks that do not go on, though they have not ended: a signal has stopped them, or they are silent."""

    def __init__(
        self, followers: Sequence[_Follower], signs: Mapping[int, Callable[[], tuple[int, int]]], most_silent: int
    ) -> None:
        """`most_silent`: looks for which a rank may be silent."""
        self._stops = Stops(stopped_by_signal)
        self._processes = {each.process.pid: each.rank for each in followers if each.process is not None}
        self._silence = Silence(list(signs), partial(_beats_of, signs), most_silent)
        self._silent = f"has not moved for {most_silent * LOOK_SECONDS:g} s"

    def look(self) -> tuple[int, str] | None:
        """Look at all of them; the first that does not go on, and what became of it."""
        if (process := self._stops.look(self._processes)) is not None:
            rank, how = self._processes[process], "was stopped by a signal"
        elif (silent := self._silence.look()) is not None:
            rank, how = silent, self._silent
        else:
            return None
        return rank, f"Rank {rank} {how}"


def _beats_of(signs: Mapping[int, Callable[[], tuple[int, int]]], rank: int) -> int:
    return signs[rank]()[0]


def _begin(follower: _Follower, config: bytes) -> None:
    """Tell it what it is part of. Raises EngineError where it has ended already."""
    try:
        follower.end_of_socket.sendall(frame(Begin(PROTOCOL_VERSION, __version__, config, follower.rank)))
    except OSError as error:
        raise EngineError(f"Rank {follower.rank} {follower.ended()} before it was told what to load.") from error


def _told_by(follower: _Follower, doing: str) -> Loaded | Met:
    """What it tells once it has done this. Raises why it cannot go on."""
    try:
        told = follower.inbox.from_rank()
    except EOFError as error:
        raise EngineError(f"Rank {follower.rank} {follower.ended()} before it had {doing}.") from error
    if isinstance(told, Failed):
        raise _error(follower.rank, told)
    return told


class _Joining:
    """Meets the devices of other ranks on a thread, which may wait in vain, and does not keep the process then."""

    def __init__(self, ranks: DeviceRanks) -> None:
        self._failed: list[Exception] = []
        self._thread = threading.Thread(target=self._join, args=(ranks,), daemon=True)
        self._thread.start()

    def _join(self, ranks: DeviceRanks) -> None:
        try:
            ranks.join()
        except Exception as error:
            self._failed.append(error)

    def look(self, alive: Callable[[], None]) -> None:
        """Raise why they cannot be met, if that is known; else call `alive`."""
        for error in self._failed:
            raise error
        alive()

    def wait(self) -> None:
        """Wait until they are met. Raises why they cannot be."""
        self._thread.join()
        self.look(lambda: None)


def _hang_up(ends: Sequence[socket.socket], gone: threading.Event) -> None:
    """Let the other ranks end."""
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    gone.set()


def _watch(
    followers: Sequence[_Follower],
    group: "weakref.ref[Group]",
    gone: threading.Event,
    halts: _Halts,
    answers: "queue.SimpleQueue[Loaded | None]",
) -> None:
    """Wait until a rank has ended, and tell its group; once that is gone, put away what it has left.

    A rank that does not go on is ended.
    """
    poll = select.poll()
    for each in followers:
        poll.register(each.end_of_socket, select.POLLIN | select.POLLRDHUP)
    killed: dict[int, str] = {}
    while True:
        ready = poll.poll(LOOK_SECONDS * 1000)
        if not ready:
            if (halted := halts.look()) is not None:
                rank, how = halted
                killed[rank] = f"{how}, and has been killed."
                next(each for each in followers if each.rank == rank).kill()
            continue
        told = _heard(next(each for each in followers if each.end_of_socket.fileno() == ready[0][0]), killed)
        if isinstance(told, str):
            break
        answers.put(told)
    if (found := group()) is not None:
        found.lose(told)
    del found
    answers.put(None)
    gone.wait()
    for each in followers:
        each.end()


def _heard(follower: _Follower, killed: Mapping[int, str]) -> Loaded | str:
    """What it tells: that it has done what it was told, or what became of it, which is known of those `killed`."""
    try:
        told = follower.inbox.from_rank()
    except (EOFError, OSError):
        return killed.get(follower.rank) or f"Rank {follower.rank} {follower.ended()}."
    if isinstance(told, Loaded):
        return told
    return f"Rank {follower.rank} failed: {told.message if isinstance(told, Failed) else told}"


def _error(rank: int, told: Failed) -> PenstockError:
    error = rebuild_error(told.code, told.message)
    return error if error.code == told.code else EngineError(f"Rank {rank}: {told.message}")
