"""Who may ask: a layer around the whole application that lets nothing by without a key, unless its path is open."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.access.errors import InvalidApiKey, NotForOthers, TooManyRequests
from penstock.access.keys import Keys, check_name, check_weight
from penstock.access.tenants import STATE, TENANT_HEADER, WEIGHT_HEADER, Tenant
from penstock.core.errors import ConfigurationError, PenstockError
from penstock.http.error_bodies import Dialects

logger = logging.getLogger("penstock.server")

_POLICY_VIOLATION = 1008


class KeysRequired:
    """ASGI middleware that finds the tenant of each request, and bounds how many each has under way.

    It looks at the same path as the router does, never at the Host header, and at no body.

    Args:
        open_paths: what answers without a key.
        refused: is told of each request that has no key that is taken: where it came from, and what was wrong.
    """

    def __init__(
        self,
        app: ASGIApp,
        dialects: Dialects,
        keys: Keys,
        open_paths: Collection[str],
        refused: Callable[[str, str], None] | None = None,
    ) -> None:
        self._app = app
        self._dialects = dialects
        self._open = frozenset(open_paths)
        self._keys, self._refused = keys, refused
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
            tenant = asked_for(self._tenant(scope), scope["headers"], self._keys)
        except InvalidApiKey as error:
            client = str((scope.get("client") or ("?",))[0])
            logger.info("refused a request from %s: %s", client, error.message)
            if self._refused is not None:
                self._refused(client, error.message)
            refusal = self._dialects.response(error, scope["path"])
            refusal.headers["www-authenticate"] = "Bearer"
            return await refusal(scope, receive, send)
        except PenstockError as error:
            return await self._dialects.response(error, scope["path"])(scope, receive, send)
        scope.setdefault("state", {})[STATE] = tenant
        if not _computes(scope):
            return await self._app(scope, receive, send)
        for owner, bounds in tenant.levels:
            most = bounds.max_concurrent_requests
            if most is not None and self._running[owner] >= most:
                full = too_many_at_a_time(most, owner)
                return await self._dialects.response(full, scope["path"])(scope, receive, send)
        owners = [level.owner for level in tenant.levels]
        self._running.update(owners)
        try:
            await self._app(scope, receive, send)
        finally:
            self._running.subtract(owners)
            for owner in owners:
                if not self._running[owner]:
                    del self._running[owner]

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
        return self._keys.find(secret.strip())


def asked_for(tenant: Tenant, headers: Sequence[tuple[bytes, bytes]], keys: Keys) -> Tenant:
    """Whose a request is: its key's own, or the one that it is for. Raises NotForOthers."""
    named = [value.decode("latin-1") for name, value in headers if name == TENANT_HEADER]
    weights = [value.decode("latin-1") for name, value in headers if name == WEIGHT_HEADER]
    if not named and not weights:
        return tenant
    if not tenant.for_others:
        raise NotForOthers(
            f"The header {TENANT_HEADER.decode()} says for whom a request is, which needs a key with for_others."
        )
    if len(named) != 1 or len(weights) > 1:
        raise NotForOthers(f"The headers {TENANT_HEADER.decode()} and {WEIGHT_HEADER.decode()} must be there once.")
    try:
        weight = float(weights[0]) if weights else 1.0
        check_name(named[0], TENANT_HEADER.decode())
        check_weight(weight, WEIGHT_HEADER.decode())
    except ValueError:
        raise NotForOthers(f"The header {WEIGHT_HEADER.decode()} is no number.") from None
    except ConfigurationError as error:
        raise NotForOthers(error.message) from None
    # What this server says of a tenant itself counts.
    return keys.tenant(named[0]) or Tenant(name=named[0], weight=weight)


def too_many_at_a_time(most: int, owner: str) -> TooManyRequests:
    """Why a request is refused while others of its key, project or organisation are under way."""
    return TooManyRequests(
        f"{most} requests with {whose(owner)} are under way, and no more at a time are allowed; wait for one."
    )


def whose(owner: str) -> str:
    """The owner of a level, as those are told who ask."""
    kind, _, name = owner.partition("/")
    return "this API key" if kind == "key" else f"keys of the {kind} {name}"


def _computes(scope: Scope) -> bool:
    """Whether it counts as under way. A client at its limit can still look, delete and cancel."""
    return bool(scope["method"] == "POST" and not scope["path"].endswith("/cancel"))
