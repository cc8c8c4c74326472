"""Who may ask: a layer around the whole application that lets nothing by without a key, unless its path is open."""

import logging
from collections import Counter
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.access.errors import InvalidApiKey, TooManyRequests
from penstock.access.keys import Keyring
from penstock.access.tenants import STATE, Tenant
from penstock.http.error_bodies import Dialects

logger = logging.getLogger("penstock.server")

_POLICY_VIOLATION = 1008


class KeysRequired:
    """ASGI middleware that finds the tenant of each request, and bounds how many each has under way.

    It looks at the same path as the router does, never at the Host header, and at no body.

    Args:
        open_paths: what answers without a key.
    """

    def __init__(self, app: ASGIApp, dialects: Dialects, keys: Keyring, open_paths: Collection[str]) -> None:
        self._app = app
        self._dialects = dialects
        self._open = frozenset(open_paths)
        self._keys = keys
        self._running: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            # The server has no other connections yet. Code that adds them has to check their keys.
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        elif scope["path"] in self._open:
            await self._app(scope, receive, send)
        else:
            await self._checked(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            tenant = self._tenant(scope)
        except InvalidApiKey as error:
            logger.info("refused a request from %s: %s", (scope.get("client") or ("?",))[0], error.message)
            refusal = self._dialects.response(error, scope["path"])
            refusal.headers["www-authenticate"] = "Bearer"
            return await refusal(scope, receive, send)
        scope.setdefault("state", {})[STATE] = tenant
        if not _computes(scope):
            return await self._app(scope, receive, send)
        most = tenant.max_concurrent_requests
        if most is not None and self._running[tenant.name] >= most:
            full = TooManyRequests(
                f"{most} requests with this API key are under way, and no more at a time are allowed; wait for one."
            )
            return await self._dialects.response(full, scope["path"])(scope, receive, send)
        self._running[tenant.name] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running[tenant.name] -= 1

    def _tenant(self, scope: Scope) -> Tenant:
        """Raises InvalidApiKey, which never quotes what came."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if given:
            scheme, _, secret = given[0].strip().partition(b" ")
            if scheme.lower() != b"bearer":
                raise InvalidApiKey("The Authorization header must be 'Bearer' and an API key.")
        else:
            given = [value for name, value in scope["headers"] if name == b"x-api-key"]
            if not given:
                raise InvalidApiKey("This server needs an API key; send it as 'Authorization: Bearer KEY'.")
            secret = given[0]
        if len(given) > 1:
            raise InvalidApiKey("The request has two API keys; send one.")
        tenant = self._keys.find(secret.strip())
        if tenant is None:
            raise InvalidApiKey("The API key is none of this server's.")
        return tenant


def _computes(scope: Scope) -> bool:
    """Whether it counts as under way. A client at its limit can still look, delete and cancel."""
    return bool(scope["method"] == "POST" and not scope["path"].endswith("/cancel"))
