"""Engines of one server: each says when it computes, and one that gives way looks whether others do."""

import mmap
import os
import weakref
from collections.abc import Callable
from typing import Protocol

# Engines that one server may have.
MOST_ENGINES = 256


class SharedMemory:
    """Memory for the engines of a server, a byte for each; it is given back once nothing refers to it.

    Attributes:
        descriptor: by which other processes get it.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("penstock-beside")
        os.ftruncate(self.descriptor, MOST_ENGINES)
        weakref.finalize(self, os.close, self.descriptor)


class Share(Protocol):
    """An engine's part of the machine."""

    def begin_step(self) -> None:
        """It computes from now on."""

    def rest(self) -> None:
        """It has nothing to compute."""


class Alone:
    """The share of an engine with none beside it: all of the machine, always."""

    def begin_step(self) -> None:
        """Nothing is to be told, and nothing changes."""

    def rest(self) -> None:
        """Nothing is to be told."""


class Leading:
    """The share of an engine for which others give way.

    Args:
        memory: that of all engines; byte `own` is this one's, and is 1 while it computes.
    """

    def __init__(self, memory: mmap.mmap, own: int) -> None:
        self._memory, self._own = memory, own
        self.rest()

    def begin_step(self) -> None:
        """Others see it from now on."""
        self._memory[self._own] = 1

    def rest(self) -> None:
        """The cores are the others'."""
        self._memory[self._own] = 0


class GivingWay:
    """The share of an engine that leaves a core to those that compute beside it, and has all while none does.

    Args:
        memory: that of all engines.
        threads: with which it computes by itself.
        use: has steps from now on computed with a number of threads.
    """

    def __init__(self, memory: mmap.mmap, threads: int, use: Callable[[int], None]) -> None:
        self._memory, self._most, self._use = memory, threads, use
        self._threads = threads

    def begin_step(self) -> None:
        """Take the threads that this step may have."""
        threads = max(1, self._most - 1) if any(self._memory[:]) else self._most
        if threads != self._threads:
            self._use(threads)
            self._threads = threads

    def rest(self) -> None:
        """Its threads sleep; no other engine looks at them."""


def attach(descriptor: int) -> mmap.mmap:
    """The memory with this descriptor, which stays the caller's."""
    return mmap.mmap(descriptor, MOST_ENGINES)
