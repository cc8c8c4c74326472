"""Takes what administrators ask away from what others ask: it has keys of its own."""

from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/admin/v1/"


class Administered:
    """ASGI middleware that passes what is below `/admin/v1` on to an application of its own."""

    def __init__(self, app: ASGIApp, admin: ASGIApp) -> None:
        self._app, self._admin = app, admin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        is_admin = scope["type"] == "http" and scope["path"].startswith(PREFIX)
        await (self._admin if is_admin else self._app)(scope, receive, send)
