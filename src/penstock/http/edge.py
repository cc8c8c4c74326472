"""Where a server meets what is in front of it: proxies, and pages of other origins."""

import re
from dataclasses import dataclass

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.core.checks import check_option_seconds
from penstock.core.config import Reason
from penstock.core.errors import ConfigurationError
from penstock.http.answers import IGNORED_HEADER
from penstock.http.error_bodies import Dialects

# Proxies keep their connections for 60 s as a rule. One that the server closes first may carry a request by then.
KEEP_ALIVE_SECONDS = 75.0
ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s@]+", re.IGNORECASE)
_ROOT_PATH = re.compile(r"(/[\w.~-]+)+")
# Headers of answers that pages may read, beside those with the request's id.
_EXPOSED = ("retry-after", IGNORED_HEADER)


@dataclass(frozen=True, kw_only=True)
class EdgeOptions:
    """How a server speaks with those in front of it.

    Attributes:
        allowed_origins: whose pages may use it from a browser, such as "https://chat.example.org", or "*".
        root_path: the path below which a proxy has it, such as "/llm"; empty where it has the root.
        keep_alive_timeout: seconds for which a connection without a request stays open.
    """

    allowed_origins: tuple[str, ...] = ()
    root_path: str = ""
    keep_alive_timeout: float = KEEP_ALIVE_SECONDS

    def check(self) -> "EdgeOptions":
        """Itself. Raises ConfigurationError where a value cannot be."""
        for origin in self.allowed_origins:
            if origin != ANY_ORIGIN and not _ORIGIN.fullmatch(origin):
                raise ConfigurationError(
                    f"--allowed-origin {origin!r} is not an origin; write one like https://chat.example.org, without a "
                    "path, or * for all."
                )
            if origin != (sent := _as_browsers_send(origin)):
                raise ConfigurationError(f"--allowed-origin {origin!r} is sent by browsers as {sent}; write that.")
        if self.root_path and not _ROOT_PATH.fullmatch(self.root_path):
            raise ConfigurationError(f"--root-path {self.root_path!r} is not a path like /llm, without a / at its end.")
        check_option_seconds("--keep-alive-timeout", self.keep_alive_timeout)
        return self

    @property
    def reasons(self) -> list[Reason]:
        """The settings, and why they have their values."""
        default = EdgeOptions()

        def reason(name: str, value: str, why: str) -> Reason:
            asked = getattr(self, name) != getattr(default, name)
            return Reason(name.replace("_", " "), value, "as asked" if asked else why)

        return [
            reason("allowed_origins", ", ".join(self.allowed_origins) or "none", "no other pages may use it"),
            reason("root_path", self.root_path or "/", "no proxy has it elsewhere"),
            reason(
                "keep_alive_timeout",
                f"{self.keep_alive_timeout:g} s",
                "longer than the 60 s for which proxies keep connections",
            ),
        ]


def _as_browsers_send(origin: str) -> str:
    """Browsers write origins in lower case, and leave out the port that a scheme has anyway."""
    lower = origin.lower()
    port = {"http": ":80", "https": ":443"}.get(lower.partition("://")[0], "")
    return lower.removesuffix(port)


def at_the_edge(app: ASGIApp, options: EdgeOptions, dialects: Dialects) -> ASGIApp:
    """The application as those in front of it see it."""
    if options.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=options.allowed_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=(*dialects.id_headers, *_EXPOSED),
        )
    return _BelowRoot(app, options.root_path) if options.root_path else app


class _BelowRoot:
    """ASGI middleware for proxies that pass on paths with the server's own root in front; others leave it out."""

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app = app
        self._root = root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with the path that the server knows."""
        if scope["type"] == "http" and scope["path"].startswith(f"{self._root}/"):
            scope = {**scope, "path": scope["path"].removeprefix(self._root)}
            if scope.get("raw_path"):
                scope["raw_path"] = scope["raw_path"].removeprefix(self._root.encode())
        await self._app(scope, receive, send)
