"""A client that asks and does not wait for its answer."""

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping

from support.waiting import PATIENCE


@contextlib.contextmanager
def sent(
    url: str, path: str, body: object, headers: Mapping[str, str] | None = None, receive_buffer: int = 4096
) -> Iterator[socket.socket]:
    """Post `body` as JSON; the client goes at the end of the block, whatever it has read.

    `receive_buffer`: bytes that the kernel keeps for the client.
    """
    content = json.dumps(body).encode()
    host, port = url.removeprefix("http://").split(":")
    lines = [f"{name}: {value}\r\n" for name, value in (headers or {}).items()]
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{''.join(lines)}"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    with contextlib.closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(PATIENCE)
        connection.connect((host, int(port)))
        connection.sendall(head.encode() + content)
        yield connection
