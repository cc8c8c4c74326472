"""Processes that compute end with those for which they do."""

import ctypes
import os
import select
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it has gone, even while this one is stopped."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have gone before that.
    if os.getppid() != parent:
        os._exit(0)


def exit_on_hang_up(descriptor: int) -> None:
    """End the process as soon as the other end of a socket is gone, whatever it is doing: a step can take seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    poll.poll()
    os._exit(0)
