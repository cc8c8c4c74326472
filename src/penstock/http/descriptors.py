"""File descriptors: how many this process may have, and some that connections never take."""

import errno
import os
import resource

from penstock.core.config import Reason

# Descriptors that are taken where the hard limit is higher: no single process serves more connections.
MOST = 65536
# For what is not a connection: files, a new engine. Of a low limit, a quarter.
RESERVE = 64


def limit() -> int:
    """How many this process may have now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> Reason:
    """Take what the hard limit allows."""
    before = limit()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if before < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            # Some systems have a lower limit than the one that they tell.
            wanted = before
    now = limit()
    why = f"raised from {before}, as the hard limit allows" if now > before else "the limit of this process"
    return Reason("file descriptors", str(now), why)


def is_short() -> bool:
    """Whether only the reserve is left."""
    most = limit()
    try:
        # The system gives the lowest number that is free.
        lowest = os.dup(0)
    except OSError as error:
        # Else there is none with the number 0, which says nothing of how many there are.
        return error.errno in (errno.EMFILE, errno.ENFILE)
    os.close(lowest)
    return lowest >= most - min(RESERVE, most // 4)
