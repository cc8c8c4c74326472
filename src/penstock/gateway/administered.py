"""Takes what administrators ask away from what others ask: it has keys of its own."""

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.http.error_bodies import Dialects
from penstock.http.errors import RouteNotFound

PREFIX = "/admin/v1/"


class NothingToAdminister:
    """The ASGI application of a gateway without tenants, which says so to everybody: there is nothing to be guessed."""

    def __init__(self, dialects: Dialects) -> None:
        self._dialects = dialects

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 404."""
        error = RouteNotFound("This gateway has no database of tenants: it was started without --database.")
        await self._dialects.response(error, scope["path"])(scope, receive, send)


class Administered:
    """ASGI middleware that passes what is below `/admin/v1` on to an application of its own."""

    def __init__(self, app: ASGIApp, admin: ASGIApp) -> None:
        self._app, self._admin = app, admin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        is_admin = scope["type"] == "http" and scope["path"].startswith(PREFIX)
        await (self._admin if is_admin else self._app)(scope, receive, send)
