"""What commands ask of a running server: JSON, over HTTP or over the operator's socket."""

import contextlib
import http.client
import socket
import ssl
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from penstock.core.errors import ConfigurationError

SECONDS = 30.0
_MOST_BYTES = 1 << 26
_LONGEST_SHOWN = 300

Answer = TypeVar("Answer")


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


def over_socket(path: str, method: str, resource: str, kind: type[Answer], body: bytes | None = None) -> Answer:
    """What a process of this user answers on a unix socket, as a `kind`. Raises ConfigurationError, OSError."""
    with contextlib.closing(_UnixConnection(path)) as connection:
        connection.request(method, resource, body, {} if body is None else {"content-type": "application/json"})
        answer = connection.getresponse()
        content = answer.read(_MOST_BYTES)
    if answer.status != 200:
        raise ConfigurationError(_message(content))
    return read_as(kind, content, path)


def get(url: str, path: str, kind: type[Answer], *, key: str | None = None, admin_socket: str | None = None) -> Answer:
    """What a server answers to `GET path`, as a `kind`. Raises ConfigurationError with what was wrong."""
    where = url if admin_socket is None else f"--admin-socket {admin_socket}"
    connection = _connect(url) if admin_socket is None else _UnixConnection(admin_socket)
    try:
        connection.request("GET", path, headers={} if key is None else {"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        body = answer.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ConfigurationError(f"{where} cannot be asked: {error}; is a server running there?") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise ConfigurationError(_refusal(where, answer.status, body))
    return read_as(kind, body, where)


def read_as(kind: type[Answer], body: bytes, where: str) -> Answer:
    """What a server has answered, as a `kind`. Raises ConfigurationError where it is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{where} does not answer as this release of Penstock does: {error}.") from error


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or port == -1
        or parts.path.strip("/") not in ("", "v1")
    ):
        raise ConfigurationError(f"--url {url!r} is not the address of a server, such as http://127.0.0.1:8000.")
    if parts.scheme == "https":
        return http.client.HTTPSConnection(parts.hostname, port, timeout=SECONDS, context=ssl.create_default_context())
    return http.client.HTTPConnection(parts.hostname, port, timeout=SECONDS)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=SECONDS)
        self._path = path

    def connect(self) -> None:
        """To the socket instead of an address."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self._path)


def _refusal(where: str, status: int, body: bytes) -> str:
    return f"{where} answers with status {status}: {_message(body)}"


def _message(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Refusal).error.message
    except msgspec.MsgspecError:
        return body[:_LONGEST_SHOWN].decode(errors="replace").strip() or "it does not say why."
