"""Processes of this package beside one that computes, with libraries that may crash, hang or write to the terminal."""

import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence


def start_beside(
    module: str, arguments: Sequence[str | bytes], passed: Sequence[int], log: logging.Logger
) -> "subprocess.Popen[bytes]":
    """Start a module with descriptors that are passed; what it writes is logged for those who look for it.

    Raises OSError.
    """
    # -P: the current directory may be a downloaded model's, and nothing in it may be imported.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        pass_fds=passed,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    name = module.rpartition(".")[2]
    try:
        threading.Thread(target=_tell, args=(process, name, log), name=f"{name}-log", daemon=True).start()
    except RuntimeError as error:
        # The machine has no room for a thread.
        process.kill()
        with process:
            pass
        raise OSError(str(error)) from error
    return process


def _tell(process: "subprocess.Popen[bytes]", name: str, log: logging.Logger) -> None:
    assert process.stdout is not None
    with process.stdout as lines, contextlib.suppress(ValueError):
        for line in lines:
            log.debug("%s: %s", name, line.decode(errors="replace").rstrip())
