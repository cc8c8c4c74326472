"""The first rank: it has the scheduler's plans, chooses tokens, and tells the others what to compute."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from penstock.core.errors import EngineError
from penstock.kernels.batch import StepBatch
from penstock.parallel.messages import Clear, Copy, Prepare, ProgramName, Put, ToRank, compute
from penstock.parallel.passing import Before
from penstock.stepping.model import Model
from penstock.stepping.storage import Pairs, PoolStorage, Took


class LeadingModel:
    """A model whose parts all ranks compute for each batch, this one its own: of every layer, or the last layers."""

    def __init__(
        self,
        own: Model,
        program: ProgramName,
        storage: "LeadingStorage",
        tell: "Telling",
        passed: Callable[[str], None] = lambda _point: None,
        before: Before | None = None,
        *,
        alike: bool = False,
    ) -> None:
        """`passed` is told of each fail-point that is passed; `before` is the stage that this one goes on from.

        Where ranks are to be `alike`, they do the same in idle time, which they do together.
        """
        self._own, self._program, self._storage, self._tell = own, program, storage, tell
        self._passed, self._before, self._alike = passed, before, alike

    def run(self, batch: StepBatch) -> Tensor:
        """See `Model`."""
        return self.results(batch)[0]

    def results(self, batch: StepBatch, *given: Tensor) -> tuple[Tensor, ...]:
        """See `Model`; nothing can be given beside the batch."""
        if given:
            raise ValueError("Ranks are told batches, and nothing beside them.")
        return self.begin(batch)()

    def begin(self, batch: StepBatch) -> Callable[[], tuple[Tensor, ...]]:
        """See `stepping.model.Begins`."""
        with self._tell.all_or_none():
            number = self._tell.step(self._program, batch)
        return functools.partial(self._finish, number, batch, self._storage.postponed())

    def _finish(self, number: int, batch: StepBatch, before: Sequence[Callable[[], None]]) -> tuple[Tensor, ...]:
        """Compute the own part of a step, behind what is to be done to blocks before it."""
        with self._tell.all_or_none():
            self._passed("rank.step")
            for change in before:
                change()
            given = () if self._before is None else self._before.take(number)
            return self._own.results(batch, *given)

    def use_idle_time(self) -> bool:
        """See `Model`."""
        if not self._alike:
            return self._own.use_idle_time()
        with self._tell.all_or_none():
            self._tell(Prepare(self._program))
            return self._own.use_idle_time()


class LeadingStorage:
    """A pool whose blocks the other ranks have, too: what is done to them here, they are told to do.

    Here it is done with the step that is begun next, since steps before may be under way.
    """

    def __init__(self, own: PoolStorage, tell: "Telling") -> None:
        self._own, self._tell = own, tell
        self._postponed: list[Callable[[], None]] = []

    def postponed(self) -> list[Callable[[], None]]:
        """What is to be done before the step that is begun now, and was not before one that was begun earlier."""
        found, self._postponed = self._postponed, []
        return found

    def postpone(self, change: Callable[[], None]) -> None:
        """Have something done here with the step that is begun next, as the others do it."""
        self._postponed.append(change)

    def clear_blocks(self, blocks: list[int]) -> None:
        """See `Blocks`."""
        self._tell(Clear(blocks))
        self.postpone(functools.partial(self._own.clear_blocks, blocks))

    def copy_blocks(self, pairs: Pairs) -> None:
        """See `Blocks`."""
        copied = list(pairs)
        self._tell(Copy(copied))
        self.postpone(functools.partial(self._own.copy_blocks, copied))

    def swap_out(self, pairs: Pairs) -> None:
        """See `PoolStorage`; a processor has nowhere to swap to."""
        self._own.swap_out(pairs)

    def swap_in(self, pairs: Pairs) -> Took:
        """See `PoolStorage`."""
        return self._own.swap_in(pairs)

    def use_idle_time(self) -> None:
        """See `PoolStorage`."""
        self._own.use_idle_time()


class Telling:
    """Gathers what other ranks are to do until they are to compute, and then tells them all of it at once."""

    def __init__(
        self, send: Callable[[bytes], None], packed: Callable[[ToRank], bytes], part: Callable[[], None]
    ) -> None:
        """`send` gives bytes to all of them; `packed` makes them of a message; `part` lets all who wait end."""
        self._send, self._packed, self._part = send, packed, part
        self._waiting = bytearray()
        self._abandoned = False
        self._steps = 0

    @contextlib.contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Where what is done within is broken off, the others end, and nothing can be computed any more.

        They may be in the middle of a step, and would meet the next one there.
        """
        try:
            yield
        except BaseException:
            self._abandoned = True
            self._part()
            raise

    def step(self, program: ProgramName, batch: StepBatch) -> int:
        """Have them compute a batch; returns the step's number. Raises EngineError as calls do."""
        self._steps += 1
        self(compute(program, self._steps, batch))
        return self._steps

    def __call__(self, message: ToRank) -> None:
        """Tell it; what is no step yet goes with the next one. Raises EngineError where nothing can be computed."""
        if self._abandoned:
            raise EngineError("A step of several ranks was broken off, and they cannot go on together.")
        self._waiting += self._packed(message)
        if not isinstance(message, Clear | Copy | Put):
            sent, self._waiting = bytes(self._waiting), bytearray()
            self._send(sent)


def send_to_all(ends: Sequence[Callable[[bytes], None]]) -> Callable[[bytes], None]:
    """What gives the same bytes to each of several, and raises EngineError where one is not there any more."""

    def send(content: bytes) -> None:
        try:
            for each in ends:
                each(content)
        except OSError as error:
            raise EngineError("A rank has ended, without which nothing can be computed.") from error

    return send
