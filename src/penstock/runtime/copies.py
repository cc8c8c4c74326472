"""Memory for copies of slots that is used again: to touch new pages takes longer than to fill pages that are there."""

import threading

# What is kept of what is not held any more: a step's slots, of a model with a large KV cache.
_MOST_IDLE = 64 << 20


class Copy:
    """Some bytes that are held until all who were given them have left them.

    Attributes:
        content: of exactly the size that was asked for; not to be used once it was left.
    """

    __slots__ = ("content", "holders")

    def __init__(self, content: bytearray) -> None:
        self.content = content
        self.holders = 1


class Copies:
    """Where they are taken from, and left to. May be used on several threads."""

    def __init__(self, most_idle: int = _MOST_IDLE) -> None:
        """At most `most_idle` bytes are kept that are not held."""
        self._most_idle = most_idle
        self._lock = threading.Lock()
        # By their sizes: a model has one size or a few.
        self._idle: dict[int, list[bytearray]] = {}
        self._idle_bytes = 0

    def take(self, size: int) -> Copy:
        """One of this size, with anything in it, held once."""
        with self._lock:
            if idle := self._idle.get(size):
                self._idle_bytes -= size
                return Copy(idle.pop())
        return Copy(bytearray(size))

    def hold(self, copy: Copy) -> Copy:
        """The same one, held once more."""
        with self._lock:
            copy.holders += 1
        return copy

    def leave(self, copy: Copy) -> None:
        """Hold one once less; its memory is taken again where that was the last hold."""
        size = len(copy.content)
        with self._lock:
            copy.holders -= 1
            if not copy.holders and self._idle_bytes + size <= self._most_idle:
                self._idle_bytes += size
                self._idle.setdefault(size, []).append(copy.content)
