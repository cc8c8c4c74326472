"""The ranks of an engine: the engine's own process is the first, and starts the others (`python -m …assembly.rank`)."""

import contextlib
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from penstock import __version__
from penstock.core.config import EngineConfig, RanksConfig
from penstock.core.errors import EngineError, PenstockError, rebuild_error
from penstock.core.shares import shares
from penstock.engine.fail_points import FailPoints
from penstock.engine.messages import pack_config
from penstock.parallel.leader import LeadingModel, LeadingStorage, Telling, send_to_all
from penstock.parallel.messages import PROTOCOL_VERSION, Arm, Begin, Failed, Inbox, frame
from penstock.parallel.passing import Before
from penstock.parallel.shared import SharedRanks, create_memory
from penstock.parallel.silence import LOOK_SECONDS, MOST_SILENT, MOST_SILENT_LOADING, Silence
from penstock.runtime.parts import Computing

_WAIT_SECONDS = 5.0
logger = logging.getLogger("penstock.engine")


def of_rank(config: EngineConfig, rank: int) -> EngineConfig:
    """What one rank is to do of what an engine does: its own threads, and keys and values of its own."""
    ranks = config.ranks
    if ranks is None:
        return config
    threads = shares(config.threads, ranks.size)[rank].count if config.threads >= ranks.size else 1
    cache = msgspec.structs.replace(config.cache, spec=ranks.specs[rank])
    return msgspec.structs.replace(config, threads=threads, cache=cache)


@dataclass(frozen=True, slots=True, eq=False)
class _Follower:
    """Another rank's process, and this end of its socket."""

    rank: int
    process: "subprocess.Popen[bytes]"
    end_of_socket: socket.socket
    inbox: Inbox

    def ended(self) -> str:
        """How its process ended, in words."""
        try:
            status = self.process.wait(_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its socket"
        return f"ended with signal {-status}" if status < 0 else f"ended with status {status}"

    def end(self) -> None:
        """Close this end of the socket, with which its process ends, and wait for that."""
        self.inbox.close()
        self.end_of_socket.close()
        self.process.wait()


class Group:
    """The other ranks, as the first one has them. They end when this process does.

    Attributes:
        signs: this one among all, as they show that they are not stopped.
        ranks: this one among those that have parts of the same layers; None: it has all of its layers.
        tell: tells the others what to do.
        points: where something can be made to go wrong in this rank.
    """

    def __init__(self, config: EngineConfig, ranks: RanksConfig) -> None:
        """Start their processes, which begin to load."""
        self._lost: Callable[[str], None] = lambda _why: None
        self._staged = ranks.num_stages > 1
        with contextlib.ExitStack() as opened:
            links = _Links(ranks, opened)
            self.signs, self.ranks = links.signs(0), links.meeting(0)
            before, _ = links.neighbours(0)
            # The descriptor is closed behind this, as all that others get.
            passed_on = None if before is None else socket.socket(fileno=os.dup(before))
            self._before = None if passed_on is None else Before(passed_on)
            self._followers = [_started(config, rank, links) for rank in range(1, ranks.size)]
        ends = [each.end_of_socket for each in self._followers]
        self.tell = Telling(send_to_all([end.sendall for end in ends]), frame, self._part)
        meets = {} if self.ranks is None else {"rank.meet": self.ranks.at_meeting}
        self.points = FailPoints(0, meets, lambda fault: self.tell(Arm(fault)))
        self._gone = threading.Event()
        # Where this process ends, its sockets close by themselves.
        weakref.finalize(self, _hang_up, [*ends, *filter(None, [passed_on])], self._gone).atexit = False

    @property
    def process_ids(self) -> list[int]:
        """Of the other ranks, in order."""
        return [each.process.pid for each in self._followers]

    def led(self, own: Computing) -> Computing:
        """What computes together with the others, where `own` is this rank's part."""
        storage = LeadingStorage(own.storage, self.tell)
        return replace(
            own,
            model=LeadingModel(own.model, "logits", storage, self.tell, self.points.passed, self._before),
            storage=storage,
            encoder=lambda: LeadingModel(own.encoder(), "states", storage, self.tell, self.points.passed, self._before),
            staged=self._staged,
        )

    def wait(self, alive: Callable[[], None]) -> None:
        """Wait until all have their weights; `alive` is called again and again. Raises why one cannot go on."""
        poll = select.poll()
        waited_for = {each.end_of_socket.fileno(): each for each in self._followers}
        for descriptor in waited_for:
            poll.register(descriptor, select.POLLIN)
        ranks = [each.rank for each in self._followers]
        silence = Silence(ranks, self.signs.beats, MOST_SILENT_LOADING)
        try:
            while waited_for:
                told = poll.poll(LOOK_SECONDS * 1000)
                for descriptor, _ in told:
                    poll.unregister(descriptor)
                    _check_loaded(waited_for.pop(descriptor))
                if not told and (silent := silence.look()) is not None:
                    seconds = MOST_SILENT_LOADING * LOOK_SECONDS
                    raise EngineError(f"Rank {silent} has not moved for {seconds:g} s while ranks loaded; all end.")
                alive()
        except BaseException:
            for each in self._followers:
                each.process.kill()
                each.end()
            raise
        # The thread does not keep the group: without it, the others end.
        watched = self._followers, weakref.ref(self), self._gone, Silence(ranks, self.signs.beats)
        threading.Thread(target=_watch, args=watched, daemon=True).start()

    def when_lost(self, call: Callable[[str], None]) -> None:
        """Have this called, on another thread, once another rank has ended, with what became of it."""
        self._lost = call

    def lose(self, why: str) -> None:
        """Another rank has ended: what is computed now, or later, fails."""
        self._part()
        self._lost(why)

    def _part(self) -> None:
        """Let what waits for others end, here and there."""
        if self.ranks is not None:
            self.ranks.part()
        if self._before is not None:
            self._before.part()


def _check_loaded(follower: _Follower) -> None:
    """Wait until it has its weights. Raises why it cannot go on."""
    try:
        told = follower.inbox.from_rank()
    except EOFError as error:
        raise EngineError(f"Rank {follower.rank} {follower.ended()} while it loaded its weights.") from error
    if isinstance(told, Failed):
        raise _error(follower.rank, told)


def _hang_up(ends: Sequence[socket.socket], gone: threading.Event) -> None:
    """Let the other ranks end."""
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    gone.set()


def _watch(
    followers: Sequence[_Follower], group: "weakref.ref[Group]", gone: threading.Event, silence: Silence
) -> None:
    """Wait until a rank has ended, and tell its group; once that is gone, put away what it has left.

    A rank that is stopped is ended.
    """
    poll = select.poll()
    for each in followers:
        poll.register(each.end_of_socket, select.POLLIN | select.POLLRDHUP)
    while not (ready := poll.poll(LOOK_SECONDS * 1000)):
        silent = silence.look()
        for each in followers:
            if each.rank == silent:
                logger.error("Rank %d has not moved for %g s and is killed.", silent, MOST_SILENT * LOOK_SECONDS)
                each.process.kill()
    _tell_loss(next(each for each in followers if each.end_of_socket.fileno() == ready[0][0]), group)
    gone.wait()
    for each in followers:
        each.end()


def _tell_loss(follower: _Follower, group: "weakref.ref[Group]") -> None:
    found = group()
    if found is not None:
        found.lose(_what_of(follower))


def _what_of(follower: _Follower) -> str:
    try:
        told = follower.inbox.from_rank()
    except EOFError:
        return f"Rank {follower.rank} {follower.ended()}."
    return f"Rank {follower.rank} failed: {told.message if isinstance(told, Failed) else told}"


def _error(rank: int, told: Failed) -> PenstockError:
    error = rebuild_error(told.code, told.message)
    return error if error.code == told.code else EngineError(f"Rank {rank}: {told.message}")


def rank_command(python: str) -> list[str]:
    """The command of a rank's process, to which the descriptors of its socket and of the shared memory are appended.

    Behind these follow whether the thread that starts it stays as long as its process, its number and that of all.
    """
    return [python, "-P", "-m", "penstock.assembly.rank"]


class _Links:
    """What ranks have in common: memory in which they meet, and a way from each stage to the next one.

    All of it is closed here with what is `opened`; processes that were started keep theirs.
    """

    def __init__(self, ranks: RanksConfig, opened: contextlib.ExitStack) -> None:
        self._ranks, self.size = ranks, ranks.size
        self._all = create_memory(ranks.size)
        opened.callback(os.close, self._all)
        self._meetings: list[int] = []
        for _ in range(ranks.num_stages if ranks.split > 1 else 0):
            self._meetings.append(create_memory(ranks.split))
            opened.callback(os.close, self._meetings[-1])
        # Of each rank: the end from the stage before, and the end to the next one.
        self._before: dict[int, int] = {}
        self._behind: dict[int, int] = {}
        # The first ranks have the last layers.
        for rank in range(ranks.size - ranks.split):
            theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            for end in (theirs, ours):
                opened.enter_context(end)
            self._before[rank], self._behind[rank + ranks.split] = ours.fileno(), theirs.fileno()

    def signs(self, rank: int) -> SharedRanks:
        """It among all."""
        return SharedRanks(self._all, rank, self._ranks.size)

    def meeting(self, rank: int) -> SharedRanks | None:
        """It among those that have parts of the same layers; None: there are no others."""
        memory, split = self.memory(rank), self._ranks.split
        return None if memory is None else SharedRanks(memory, rank % split, split)

    def memory(self, rank: int) -> int | None:
        """The descriptor of the memory in which it meets those."""
        return self._meetings[rank // self._ranks.split] if self._meetings else None

    def neighbours(self, rank: int) -> tuple[int | None, int | None]:
        """The descriptors of its ends from the stage before and to the one behind."""
        return self._before.get(rank), self._behind.get(rank)

    def passed(self, rank: int) -> tuple[int, ...]:
        """All descriptors that its process gets; that of the memory of all is the first."""
        others = (self.memory(rank), *self.neighbours(rank))
        return (self._all, *(each for each in others if each is not None))


def _started(config: EngineConfig, rank: int, links: _Links) -> _Follower:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        passed: Sequence[int] = (theirs.fileno(), *links.passed(rank))
        # The kernel ends a process with the thread that has started it, where it is asked to: the first one stays.
        stays = threading.current_thread() is threading.main_thread()
        arguments = map(str, (*passed[:2], int(stays), rank, links.size))
        process = subprocess.Popen([*rank_command(sys.executable), *arguments], pass_fds=passed)
    follower = _Follower(rank, process, ours, Inbox(ours))
    before, behind = links.neighbours(rank)
    begin = Begin(PROTOCOL_VERSION, __version__, pack_config(config), rank, links.memory(rank), before, behind)
    ours.sendall(frame(begin))
    return follower
