"""What became of requests: a list of the last ones, and each one's way through the gateway and its replica."""

import asyncio
import logging
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from penstock.access.tenants import tenant_of
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.errors import ReplicaBroken
from penstock.gateway.headers import get_head
from penstock.gateway.ways import Way
from penstock.http.answers import json_response
from penstock.observability.explain.explanation import Explanation
from penstock.server.explain import RequestNotFound, read_listing

logger = logging.getLogger("penstock.gateway")

_SECONDS = 5.0
# Of an explanation.
_MOST_BYTES = 1024 * 1024


class WaysApi:
    """The endpoints below `/v1/requests`."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._ways, self._replicas, self._keyed = dispatch.ways, dispatch.replicas, dispatch.keyed

    def routes(self) -> list[Route]:
        """The routes of these endpoints."""
        return [
            Route("/v1/requests", self.list, methods=["GET"]),
            Route("/v1/requests/{id:path}/explain", self.explain, methods=["GET"]),
        ]

    async def list(self, request: Request) -> Response:
        """`GET /v1/requests`: recent ones, the newest or the slowest first."""
        limit, slowest = read_listing(request)
        found = self._ways.latest(tenant_of(request).name, limit, slowest=slowest)
        return json_response({"object": "list", "data": found})

    async def explain(self, request: Request) -> Response:
        """`GET /v1/requests/{id}/explain`: a request's way through the gateway, and why its replica took its time."""
        request_id, tenant = request.path_params["id"], tenant_of(request).name
        way = self._ways.find(request_id, tenant)
        if way is None:
            raise RequestNotFound(f"No request {request_id[:80]!r} of yours is remembered at this gateway (any more).")
        told = await self._explained(way, request.scope)
        return json_response({**told, "gateway": way})

    async def _explained(self, way: Way, scope: Scope) -> dict[str, msgspec.Raw]:
        """What the replica says that a request was sent to last; nothing where it says nothing."""
        name = way.tries[-1].replica if way.tries else None
        replica = next((each for each in self._replicas.machines if each.name == name), None)
        if replica is None:
            return {}
        try:
            head = get_head(scope, replica, f"/v1/requests/{quote(way.id, safe='')}/explain", keyed=self._keyed)
            async with asyncio.timeout(_SECONDS), replica.ask(head) as (_, exchange):
                status, body = (await exchange.head()).status, await exchange.body(_MOST_BYTES)
            if status != 200:
                return {}
            # Servers of other programs may answer anything.
            msgspec.json.decode(body, type=Explanation)
            return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except (ReplicaBroken, TimeoutError, msgspec.DecodeError) as error:
            logger.info("%s does not explain %s: %s", replica.name, way.id, error)
            return {}
