"""What the ranks of one machine have in common, and how their processes are started."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

import torch

from penstock.core.config import EngineConfig, RanksConfig
from penstock.parallel.device_ranks import DeviceRanks, create_meeting
from penstock.parallel.shared import SharedRanks, create_memory

NONE = "-"
"""Stands for a descriptor that a rank does not get."""


class Links:
    """Where the ranks of a machine meet, and a way from each stage to the next one.

    All of it is closed here with what is `opened`; processes that were started keep theirs.

    Attributes:
        ranks: those of this machine.
    """

    def __init__(
        self, ranks: RanksConfig, opened: contextlib.ExitStack, machine: int = 0, *, devices: bool = False
    ) -> None:
        """`devices`: ranks compute on GPUs, which meet by themselves."""
        self._config, self._opened = ranks, opened
        self.ranks = ranks.ranks_of(machine)
        self._all = create_memory(ranks.size)
        opened.callback(os.close, self._all)
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

    def signs(self, rank: int) -> SharedRanks:
        """A rank among all of this machine, as they show that they are not stopped."""
        return SharedRanks(self._all, rank, self._config.size)

    def meeting(self, config: EngineConfig, rank: int) -> SharedRanks | DeviceRanks | None:
        """A rank among those that have parts of the same layers, or of contexts; None: there are no others."""
        descriptor = self._meetings.get(rank // self._config.together)
        return None if descriptor is None else met_at(descriptor, config, self._config, rank)

    def before(self, rank: int) -> socket.socket | None:
        """A connection of its own from the stage before."""
        found = self._before.get(rank)
        return None if found is None else socket.socket(fileno=os.dup(found))

    def start(self, rank: int, control: socket.socket, model: str = "") -> "subprocess.Popen[bytes]":
        """Start a rank's process, which is told by the other end of `control` what to do.

        `model` is where this machine has the model; "": where the engine has it.
        """
        memory = self._meetings.get(rank // self._config.together)
        others = (memory, self._before.get(rank), self._behind.get(rank))
        # The kernel ends a process with the thread that has started it, where it is asked to: the first one stays.
        stays = threading.current_thread() is threading.main_thread()
        arguments = (control.fileno(), self._all, int(stays), rank, self._config.size, *others, model)
        passed: Sequence[int] = [control.fileno(), self._all, *(each for each in others if each is not None)]
        shown = [NONE if each is None else str(each) for each in arguments]
        return subprocess.Popen([*rank_command(sys.executable), *shown], pass_fds=passed)


def met_at(descriptor: int, config: EngineConfig, ranks: RanksConfig, rank: int) -> SharedRanks | DeviceRanks:
    """A rank among those that meet where this descriptor says; `config` has its own device."""
    own, size = rank % ranks.together, ranks.together
    if config.device == "cpu":
        return SharedRanks(descriptor, own, size)
    # Triton takes a second to import.
    from penstock.kernels.cuda.place import INTERPRETED

    device = torch.device("cpu" if INTERPRETED else config.device)
    return DeviceRanks(descriptor, own, size, device, deterministic=config.deterministic)


def rank_command(python: str) -> list[str]:
    """The command of a rank's process, to which what `assembly.rank` takes is appended."""
    return [python, "-P", "-m", "penstock.assembly.rank"]
