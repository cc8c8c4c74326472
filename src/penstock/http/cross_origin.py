"""Keeps pages of other sites from using a server without keys through the browser of a user who can reach it."""

import ipaddress
import socket
from collections.abc import Collection, Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.core.errors import RequestError
from penstock.http.error_bodies import Dialects
from penstock.http.errors import ForeignHost, ForeignPage

# Names below these cannot be had in the public DNS.
_PRIVATE = ("localhost", "local", "internal", "home.arpa")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class CrossOriginGuard:
    """ASGI middleware that refuses what a browser sends for a page of another site.

    Answers have no header that lets such a page read them, so what only reads needs no refusal, unless the page has
    made its own name mean this machine (DNS rebinding): the browser then takes the server for the page's own. Such a
    name is in the Host header.

    Args:
        local: whether the server is meant for its own machine, so that it needs no name of the public DNS.
        allowed: origins whose pages may use it all the same; "*" stands for all.
    """

    def __init__(self, app: ASGIApp, dialects: Dialects, local: bool, allowed: Collection[str] = ()) -> None:
        self._app = app
        self._dialects = dialects
        self._allowed = frozenset(origin.lower() for origin in allowed)
        self._names = frozenset({socket.gethostname().lower()}) if local else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        error = self._problem(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            await self._dialects.response(error, scope["path"])(scope, receive, send)

    def _problem(self, scope: Scope) -> RequestError | None:
        host = _header(scope, b"host")
        if self._names is not None and not is_private(host, self._names):
            return ForeignHost(
                f"A server without API keys is not reached as {host[:100]!r}, which may be any page's name; use its "
                "address or localhost, or start it with --no-auth or with keys."
            )
        if self._allowed & {"*", _header(scope, b"origin").lower()}:
            return None
        if scope["method"] not in _READING and _is_foreign(scope, host):
            return ForeignPage(
                "Without API keys, only this server's own pages may send this from a browser, and those of an "
                "--allowed-origin."
            )
        return None


def is_private(host: str, names: Iterable[str]) -> bool:
    """Whether no stranger can own the name in a Host header: an address, a private name, or one of `names`."""
    name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    name = name.strip("[]").rstrip(".").lower()
    # A name in the public DNS has a dot.
    if "." not in name and ":" not in name:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in names or name.endswith(tuple(f".{suffix}" for suffix in _PRIVATE))
    return True


def _is_foreign(scope: Scope, host: str) -> bool:
    origin = _header(scope, b"origin").lower()
    if origin not in ("", "null") and not origin.startswith(("http://", "https://")):
        # Programs that are made of pages, and extensions of browsers.
        return False
    site = _header(scope, b"sec-fetch-site")
    if site:
        return site not in ("none", "same-origin")
    return origin != "" and origin.partition("://")[2] != host.lower()


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")
