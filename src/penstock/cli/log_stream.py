"""Standard error as a server needs it: whatever is behind it, writing never fails and never waits."""

import contextlib
import io
import os
import queue
import select
import sys
import threading
from collections.abc import Iterator

# Pieces of text, about a line each, that wait for the stream's reader; pieces that come then are lost.
MOST_WAITING = 4096
# For what waits at the end.
_END_SECONDS = 1.0


class LogStream(io.TextIOBase):
    """A text stream over a descriptor that a thread of its own writes to.

    A full disk, a pipe whose reader has gone and one whose reader does not read cost what is written meanwhile, and
    nothing else. Where something can be written again, a line says how much was lost.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # Handlers of signals log too, in the midst of another line: this queue bears that.
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._lost = 0
        self._why: str | None = ""
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """How characters become bytes: always UTF-8."""
        return "utf-8"

    def write(self, text: str) -> int:
        """Have it written, if it can be."""
        if self._ended:
            self._put_late(text)
        elif self._texts.qsize() < MOST_WAITING:
            self._texts.put(text)
        else:
            self._lost += 1
            self._why = "it has no reader"
        return len(text)

    def writable(self) -> bool:
        """Always true; it is there to be written to."""
        return True

    def fileno(self) -> int:
        """The descriptor that is written to."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def end(self) -> None:
        """Write what waits, but not for long; what comes later is written at once, or not at all."""
        self._texts.put(None)
        self._thread.join(_END_SECONDS)
        self._ended = True

    def _run(self) -> None:
        while (text := self._texts.get()) is not None:
            try:
                if self._lost:
                    self._put(f"{self._lost} pieces of this log were lost: {self._why}.\n")
                    self._lost = 0
                self._put(text)
            except OSError as error:
                self._lost += 1
                self._why = error.strerror

    def _put(self, text: str) -> None:
        rest = memoryview(_encoded(text))
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def _put_late(self, text: str) -> None:
        """Loggers outlive the stream: those of threads that are still there, and those of the process's very end."""
        data = _encoded(text)
        # The descriptor may be closed by now.
        with contextlib.suppress(OSError, ValueError):
            for start in range(0, len(data), select.PIPE_BUF):
                # A pipe that can be written takes PIPE_BUF bytes without waiting.
                if not select.select((), (self._descriptor,), (), 0)[1]:
                    return
                os.write(self._descriptor, data[start : start + select.PIPE_BUF])


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


@contextlib.contextmanager
def unfailing_stderr() -> Iterator[None]:
    """While the block runs, `sys.stderr` is such a stream, where there is one."""
    before = sys.stderr
    if before is None:
        # The process that started this one has closed it; nothing is written then.
        yield
        return
    stream = LogStream(before.fileno())
    sys.stderr = stream
    try:
        yield
    finally:
        stream.end()
        sys.stderr = before
