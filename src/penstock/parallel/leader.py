"""The first rank: it has the scheduler's plans, chooses tokens, and tells the others what to compute."""

from collections.abc import Callable, Sequence

from torch import Tensor

from penstock.core.errors import EngineError
from penstock.kernels.batch import StepBatch
from penstock.parallel.messages import Clear, Copy, ProgramName, ToRank, compute
from penstock.stepping.model import Model
from penstock.stepping.storage import Pairs, PoolStorage, Took


class LeadingModel:
    """A model whose parts all ranks compute for each batch, this one its own."""

    def __init__(self, own: Model, program: ProgramName, tell: "Telling", passed: Callable[[str], None]) -> None:
        """`passed` is told of each fail-point that is passed."""
        self._own, self._program, self._tell, self._passed = own, program, tell, passed

    def run(self, batch: StepBatch) -> Tensor:
        """See `Model`."""
        return self.results(batch)[0]

    def results(self, batch: StepBatch, *given: Tensor) -> tuple[Tensor, ...]:
        """See `Model`; nothing can be given beside the batch."""
        if given:
            raise ValueError("Ranks are told batches, and nothing beside them.")
        try:
            self._tell(compute(self._program, batch))
            self._passed("rank.step")
            return self._own.results(batch)
        except BaseException:
            # Others may be in the middle of this batch, and would meet the next one there.
            self._tell.abandon()
            raise

    def use_idle_time(self) -> bool:
        """See `Model`; others do as they find time."""
        return self._own.use_idle_time()


class LeadingStorage:
    """A pool whose blocks the other ranks have, too: what is done to them here, they are told to do."""

    def __init__(self, own: PoolStorage, tell: "Telling") -> None:
        self._own, self._tell = own, tell

    def clear_blocks(self, blocks: list[int]) -> None:
        """See `Blocks`."""
        self._tell(Clear(blocks))
        self._own.clear_blocks(blocks)

    def copy_blocks(self, pairs: Pairs) -> None:
        """See `Blocks`."""
        self._tell(Copy(list(pairs)))
        self._own.copy_blocks(pairs)

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

    def abandon(self) -> None:
        """What the others were told did not come to its end here: they end, and nothing can be computed any more."""
        self._abandoned = True
        self._part()

    def __call__(self, message: ToRank) -> None:
        """Tell it; what is no step yet goes with the next one. Raises EngineError where nothing can be computed."""
        if self._abandoned:
            raise EngineError("A step of several ranks was broken off, and they cannot go on together.")
        self._waiting += self._packed(message)
        if not isinstance(message, Clear | Copy):
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
