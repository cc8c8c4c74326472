"""The application of a gateway: what a replica answers, from whichever replica answers it."""

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.access.auth import KeysRequired
from penstock.access.keys import Keyring, Keys
from penstock.gateway.administered import Administered, NothingToAdminister
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.join import JoinApi
from penstock.gateway.joining import PATH as JOIN_PATH
from penstock.gateway.languages import LanguagesApi
from penstock.gateway.page.files import GATEWAY_PAGE
from penstock.gateway.relay import Relay
from penstock.gateway.requests import WaysApi
from penstock.gateway.stored import StoredApi
from penstock.http.answers import json_response
from penstock.http.body import BodyReader
from penstock.http.cross_origin import CrossOriginGuard
from penstock.http.error_bodies import Dialects, ErrorHandlers
from penstock.http.request_ids import Identified
from penstock.observability.exposition import CONTENT_TYPE
from penstock.server.page.endpoints import page_routes
from penstock.tenancy.settings import ENDPOINTS

if TYPE_CHECKING:
    from penstock.batches.stored import StoredApi as FilesAndBatches
    from penstock.gateway.tenants import Tenants

MAX_BODY_BYTES = 32 * 1024 * 1024
# Those who join have a token of their own; a page asks for a key.
_OPEN = frozenset(("/health", "/health/live", "/health/ready", JOIN_PATH, *GATEWAY_PAGE))


def create_gateway(
    dispatch: Dispatch,
    dialects: Dialects,
    *,
    join: JoinApi | None = None,
    keys: Keys | None = None,
    tenants: "Tenants | None" = None,
    files: "FilesAndBatches | None" = None,
    local: bool = False,
    allowed_origins: Collection[str] = (),
) -> Starlette:
    """The ASGI application that passes requests on to replicas.

    Args:
        join: where replicas join; nowhere without it.
        keys: who may ask; without any, every client.
        tenants: whose keys are taken instead, and which administrators change.
        files: what the gateway keeps itself; without it, files and batches are at replicas.
        local: whether a gateway without keys is meant for its own machine only, and needs no name of the public DNS.
        allowed_origins: of pages that may use a gateway without keys; "*" stands for all.
    """
    keys = tenants.following.directory if tenants is not None else keys or Keyring()
    relay = Relay(dispatch, BodyReader(MAX_BODY_BYTES), dialects)
    status, stored = _Status(dispatch), StoredApi(dispatch)

    if keys:
        refused = None if tenants is None else tenants.following.refused
        guard = Middleware(KeysRequired, dialects, keys=keys, open_paths=_OPEN, refused=refused)
    else:
        guard = Middleware(CrossOriginGuard, dialects, local=local, allowed=allowed_origins)
    application = Starlette(
        middleware=[guard, Middleware(_Shortcut, relay=relay)],
        routes=[
            *(Route(path, relay, methods=["POST"]) for path in ENDPOINTS),
            *LanguagesApi(dispatch).routes(),
            *stored.routes(),
            *(stored.file_routes() if files is None else files.routes()),
            Route("/v1/models", status.models, methods=["GET"]),
            Route("/v1/models/{name:path}", status.model, methods=["GET"]),
            *(join.routes() if join is not None else ()),
            Route("/v1/fleet", status.fleet, methods=["GET"]),
            *WaysApi(dispatch).routes(),
            *page_routes(GATEWAY_PAGE),
            Route("/metrics", status.metrics, methods=["GET"]),
            Route("/health", status.ready, methods=["GET"]),
            Route("/health/live", status.live, methods=["GET"]),
            Route("/health/ready", status.ready, methods=["GET"]),
        ],
        exception_handlers=ErrorHandlers(dialects).all(),
    )
    application.router.redirect_slashes = False
    inner: ASGIApp = application.build_middleware_stack()
    admin = NothingToAdminister(dialects) if tenants is None else tenants.admin(dialects)
    application.middleware_stack = Identified(Administered(inner, admin), dialects)
    return application


class _Shortcut:
    """ASGI middleware that takes what is passed on to the relay at once: it is most of what comes, and every wrapper on
    the way would see each event of each stream. The relay answers its own errors.
    """

    def __init__(self, app: ASGIApp, relay: Relay) -> None:
        self._app, self._relay, self._paths = app, relay, frozenset(ENDPOINTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, to the relay or to the routes."""
        relayed = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._paths
        await (self._relay if relayed else self._app)(scope, receive, send)


class _Status:
    """What a gateway says of itself."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch, self._replicas = dispatch, dispatch.replicas
        self._began = int(time.time())

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`"""
        return json_response({"object": "list", "data": [self._card(model) for model in self._dispatch.models]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{name}`"""
        name = request.path_params["name"]
        if name not in self._dispatch.models:
            self._replicas.candidates(name)
        return json_response(self._card(name))

    async def fleet(self, request: Request) -> Response:
        """`GET /v1/fleet`: the replicas, and what was done with requests."""
        return json_response(self._dispatch.fleet())

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`, in Prometheus' text format."""
        return Response(self._dispatch.text(), media_type=CONTENT_TYPE)

    async def live(self, request: Request) -> Response:
        """`GET /health/live`: this process answers."""
        return json_response({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """`GET /health` and `GET /health/ready`: a machine or a provider can answer."""
        if not any(each.hosted is not None for each in self._replicas.all):
            self._replicas.candidates(None)
        return json_response({"status": "ready"})

    def _card(self, model: str) -> dict[str, object]:
        root, longest = self._replicas.described(model)
        card = {"id": model, "object": "model", "created": self._began, "owned_by": "penstock", "root": root}
        return {**card, "max_model_len": longest} if longest else card
