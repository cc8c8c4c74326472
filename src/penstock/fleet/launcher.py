"""Becomes another command, tied to the process that started it: `launcher.py PARENT CORES COMMAND…`.

It needs Python alone, without anything that is installed, so that it takes no time. No command is to outlive its
supervisor, which alone knows of it: when that is gone, Linux sends it SIGTERM, and it ends in order.
"""

import ctypes
import os
import signal
import sys

# prctl(2): the signal to send when the parent ends.
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, and to its cores, and become the command."""
    parent, cores, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        # It may have ended before.
        if os.getppid() != int(parent):
            sys.exit("The supervisor has ended.")
        if cores:
            os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
