"""What the ranks of one machine have in common, and how their processes are started.

Nothing here imports torch: where the first rank knows at its start what to build, all import it at the same time.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core.config import RanksConfig
from penstock.parallel.places import create_meeting, create_memory

NONE = "-"
"""Stands for a descriptor that a rank does not get."""


class Links:
    """Where the ranks of a machine meet, and a way from each stage to the next one.

    All of it is closed here with what is `opened`; processes that were started keep theirs.

    Attributes:
        ranks: those of this machine.
        size: how many there are on all machines.
        everyone: descriptor of memory in which all of them show that they are not stopped.
    """

    def __init__(
        self, ranks: RanksConfig, opened: contextlib.ExitStack, machine: int = 0, *, devices: bool = False
    ) -> None:
        """`devices`: ranks compute on GPUs, which meet by themselves."""
        self._config, self._opened = ranks, opened
        self.ranks, self.size = ranks.ranks_of(machine), ranks.size
        self.everyone = create_memory(self.size)
        opened.callback(os.close, self.everyone)
        self._meetings: dict[int, int] = {}
        for stage in {rank // ranks.together for rank in self.ranks} if ranks.together > 1 else ():
            self._meetings[stage] = create_meeting() if devices else create_memory(ranks.together)
            opened.callback(os.close, self._meetings[stage])
        # Of each rank: the end from the stage before, and the end to the next one.
        self._before: dict[int, int] = {}
        self._behind: dict[int, int] = {}
        # The first ranks have the last layers.
        for rank in self.ranks:
            if rank + ranks.together in self.ranks:
                theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                self.come_from(rank, ours)
                self.go_to(rank + ranks.together, theirs)

    def come_from(self, rank: int, end: socket.socket) -> None:
        """The stage before gives a rank values by this connection."""
        self._before[rank] = self._opened.enter_context(end).fileno()

    def go_to(self, rank: int, end: socket.socket) -> None:
        """A rank gives the next stage values by this connection."""
        self._behind[rank] = self._opened.enter_context(end).fileno()

    @property
    def without_before(self) -> set[int]:
        """The ranks to which values come from another machine."""
        first = self._config.size - self._config.together
        return {rank for rank in self.ranks if rank < first and rank not in self._before}

    @property
    def without_behind(self) -> set[int]:
        """The ranks from which values go to another machine."""
        return {rank for rank in self.ranks if rank >= self._config.together and rank not in self._behind}

    def meeting(self, rank: int) -> int | None:
        """A descriptor of where it meets those with parts of the same layers, or of contexts; None: there are none."""
        return self._meetings.get(rank // self._config.together)

    def before(self, rank: int) -> socket.socket | None:
        """A connection of its own from the stage before."""
        found = self._before.get(rank)
        return None if found is None else socket.socket(fileno=os.dup(found))

    def start(self, rank: int, control: socket.socket, model: str = "") -> "subprocess.Popen[bytes]":
        """Start a rank's process, which is told by the other end of `control` what to do.

        `model` is where this machine has the model; "": where the engine has it.
        """
        others = (self.meeting(rank), self._before.get(rank), self._behind.get(rank))
        # The kernel ends a process with the thread that has started it, where it is asked to: the first one stays.
        stays = threading.current_thread() is threading.main_thread()
        arguments = (control.fileno(), self.everyone, int(stays), rank, self.size, *others, model)
        passed: Sequence[int] = [control.fileno(), self.everyone, *(each for each in others if each is not None)]
        shown = [NONE if each is None else str(each) for each in arguments]
        return subprocess.Popen([*rank_command(sys.executable), *shown], pass_fds=passed)


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """Ranks of this machine whose processes have been started, behind the first one, which is this process.

    Attributes:
        processes: of each rank its process, and this end of the connection to it.
        opened: closes what `links` has open here.
    """

    links: Links
    processes: "Mapping[int, tuple[subprocess.Popen[bytes], socket.socket]]"
    opened: contextlib.ExitStack


def begin(ranks: RanksConfig, before: Mapping[int, socket.socket], *, devices: bool) -> Begun:
    """Start the processes of this machine's ranks, which begin with their imports; they end when this process does.

    `before`: of ranks, connections from the stage before on another machine. `devices`: ranks compute on GPUs.
    """
    with contextlib.ExitStack() as opened:
        links = Links(ranks, opened, devices=devices)
        for rank, end in before.items():
            links.come_from(rank, end)
        processes = {rank: _started(rank, links) for rank in links.ranks[1:]}
        return Begun(links, processes, opened.pop_all())


def _started(rank: int, links: Links) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        return links.start(rank, theirs), ours


def rank_command(python: str) -> list[str]:
    """The command of a rank's process, to which what `assembly.rank` takes is appended."""
    return [python, "-P", "-m", "penstock.assembly.rank"]
