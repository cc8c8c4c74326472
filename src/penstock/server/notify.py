"""Tells the process that started this one that it serves, as systemd's `Type=notify` units do (sd_notify(3))."""

import logging
import os
import socket

logger = logging.getLogger("penstock.server")

# Of the environment, with the path of a datagram socket; an abstract one begins with @.
VARIABLE = "NOTIFY_SOCKET"
READY = b"READY=1"


def notify(state: bytes) -> None:
    """Tell it, where it has asked for that."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect("\0" + path[1:] if path.startswith("@") else path)
            sender.send(state)
    except OSError as error:
        logger.warning("%s in %s cannot be told: %s", state.decode(), VARIABLE, error)
