"""A device that does nothing when it is asked to, but later: its queues get on by chance, as far as marks allow."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.runtime.queues import Mark, Queues


class LaterQueue:
    """A queue whose entries are done one at a time, when they are told to be."""

    def __init__(self, asked: Callable[["LaterQueue"], object] = lambda queue: None) -> None:
        """`asked` is called before it says whether a mark was passed."""
        self.waiting: deque[Callable[[], object] | Mark] = deque()
        self.begun = self.done = 0
        self.asked = asked
        # Gets on with it, or with what it waits for.
        self.get_on_somewhere: Callable[[], object] = self.get_on

    def run(self, work: Callable[[], object]) -> None:
        self._add(work)

    def wait_for(self, mark: Mark) -> None:
        self._add(mark)

    def _add(self, entry: Callable[[], object] | Mark) -> None:
        self.begun += 1
        self.waiting.append(entry)

    def mark(self) -> Mark:
        return LaterMark(self, self.begun)

    def get_on(self) -> bool:
        """Do what is next; whether it could be done."""
        if not self.waiting:
            return False
        entry = self.waiting[0]
        if isinstance(entry, LaterMark):
            if not entry.is_passed:
                return False
        elif callable(entry):
            entry()
        self.waiting.popleft()
        self.done += 1
        return True


@dataclass(frozen=True)
class LaterMark:
    """A point in one."""

    queue: LaterQueue
    place: int

    @property
    def is_passed(self) -> bool:
        return self.queue.done >= self.place

    def query(self) -> bool:
        self.queue.asked(self.queue)
        return self.is_passed

    def synchronize(self) -> None:
        while not self.is_passed:
            self.queue.get_on_somewhere()


class LaterDevice:
    """Two queues, which get on by chance."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._both = LaterQueue(), LaterQueue()
        for queue in self._both:
            queue.get_on_somewhere = self.get_on
        self.queues = Queues(*self._both)

    def get_on(self) -> bool:
        """Do one entry of a queue; False where nothing can be done."""
        return any(queue.get_on() for queue in self._chance.sample(self._both, 2))

    def finish(self) -> None:
        """Do all that is left."""
        while self.get_on():
            pass
        assert not any(queue.waiting for queue in self._both), "they wait for one another"


class PromptQueue:
    """A queue whose work is done when it is begun, so that it has to wait for marks of others then."""

    def run(self, work: Callable[[], object]) -> None:
        work()

    def wait_for(self, mark: Mark) -> None:
        mark.synchronize()

    def mark(self) -> Mark:
        return LaterMark(LaterQueue(), 0)


def copies_later(chance: random.Random) -> Queues:
    """Queues of a device that computes at once, and copies a little each time that it is asked whether it has."""

    def some(queue: LaterQueue) -> None:
        while chance.random() < 0.7 and queue.get_on():
            pass

    return Queues(PromptQueue(), LaterQueue(some))
