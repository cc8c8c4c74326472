"""Queues of a device's work: what one is given is done in order, and beside what another is given."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch


class Mark(Protocol):
    """A point in a queue."""

    def query(self) -> bool:
        """Whether all before it is done."""

    def synchronize(self) -> None:
        """Wait until all before it is done."""


class Queue(Protocol):
    """Work of a device that is done in order."""

    def run(self, work: Callable[[], object]) -> None:
        """Begin what `work` launches, behind all before it."""

    def mark(self) -> Mark:
        """The point behind all that was begun."""

    def wait_for(self, mark: Mark) -> None:
        """What is begun from now on is done when a point of another queue is passed."""


class Queues(NamedTuple):
    """Those of a device.

    Attributes:
        computing: of its steps.
        copying: of copies between it and the processor's memory.
    """

    computing: Queue
    copying: Queue


def queues_of(device: torch.device) -> Queues:
    """The device's, with a new one for copies; where that is the processor, all is done when it is begun."""
    if device.type != "cuda":
        return Queues(_AtOnce(), _AtOnce())
    return Queues(_Stream(device, None), _Stream(device, torch.cuda.Stream(device)))


class _Over:
    """A point that was passed when it was made."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class _AtOnce:
    """Where nothing is done beside."""

    def run(self, work: Callable[[], object]) -> None:
        work()

    def mark(self) -> Mark:
        return _Over()

    def wait_for(self, mark: Mark) -> None:
        pass


class _Stream:
    """A stream of CUDA; None: the one that is current when it is used."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        self._device, self._own = device, stream

    @property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device) if self._own is None else self._own

    def run(self, work: Callable[[], object]) -> None:
        with torch.cuda.stream(self._stream):
            work()

    def mark(self) -> Mark:
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def wait_for(self, mark: Mark) -> None:
        assert isinstance(mark, torch.cuda.Event), "it is of a stream"
        self._stream.wait_event(mark)
