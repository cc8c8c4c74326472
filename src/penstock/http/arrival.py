"""When a request has arrived, which is before the server gets to it: the kernel has kept it for as long as it says."""

import asyncio
import socket
import struct
import time

# In a scope's state, what says when its request arrived, on the monotonic clock.
ARRIVED = "arrived"

# The field `tcpi_last_data_recv` of Linux' `struct tcp_info`: milliseconds, in steps of up to 4.
_FIELD = struct.Struct("<I")
_OFFSET = 52
_LONGEST_SECONDS = 60.0


def arrival(transport: asyncio.Transport) -> float:
    """When the newest of what a connection has received came in.

    A server whose event loop is busy, or that has no processor, reads it later, and its clients wait from then on. To
    within a few milliseconds, and right in the mean; where the kernel does not say, it is now.
    """
    now = time.monotonic()
    option = getattr(socket, "TCP_INFO", None)
    connection = transport.get_extra_info("socket")
    if option is None or connection is None:
        return now
    try:
        (waited,) = _FIELD.unpack_from(
            connection.getsockopt(socket.IPPROTO_TCP, option, _OFFSET + _FIELD.size), _OFFSET
        )
    except (OSError, struct.error):
        # No TCP, or a kernel that knows less.
        return now
    seconds = waited / 1000
    return now - seconds if seconds < _LONGEST_SECONDS else now
