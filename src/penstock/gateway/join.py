"""Where replicas register themselves, who have the token."""

import hmac

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.core.errors import ConfigurationError, RequestError
from penstock.gateway.errors import JoinRefused
from penstock.gateway.joining import PATH, VARIABLE, Joined, Joining
from penstock.gateway.members import Members
from penstock.http.answers import json_response
from penstock.http.body import BodyReader

_MAX_BODY_BYTES = 4096


_decode = msgspec.json.Decoder(Joining).decode


class JoinApi:
    """The endpoint of `/v1/fleet/replicas`.

    Args:
        token: that replicas must have; None: none may join.
    """

    def __init__(self, members: Members, token: str | None) -> None:
        self._members, self._token = members, token
        self._bodies = BodyReader(_MAX_BODY_BYTES)

    def routes(self) -> list[Route]:
        """The route of `/v1/fleet/replicas`."""
        return [
            Route(PATH, self.join, methods=["POST"]),
            Route(PATH, self.leave, methods=["DELETE"]),
            Route(PATH, self.list, methods=["GET"]),
        ]

    async def join(self, request: Request) -> Response:
        """`POST /v1/fleet/replicas`"""
        url = (await self._read(request)).url
        try:
            return json_response(Joined(self._members.join(url)))
        except ConfigurationError as error:
            raise RequestError(error.message) from None

    async def leave(self, request: Request) -> Response:
        """`DELETE /v1/fleet/replicas`"""
        url = (await self._read(request)).url
        try:
            self._members.leave(url)
        except ConfigurationError as error:
            raise RequestError(error.message) from None
        return json_response({"left": True})

    async def list(self, request: Request) -> Response:
        """`GET /v1/fleet/replicas`: for who looks after the replicas, and has their token."""
        self._check(request)
        return json_response(self._members.seen())

    def _check(self, request: Request) -> None:
        """Raises JoinRefused without the token."""
        if self._token is None:
            raise JoinRefused(f"Replicas cannot join this gateway: it was started without {VARIABLE}.")
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise JoinRefused(f"To join this gateway, a replica needs the token that the gateway has as {VARIABLE}.")

    async def _read(self, request: Request) -> Joining:
        self._check(request)
        try:
            return _decode(await self._bodies.read(request))
        except msgspec.DecodeError as error:
            raise RequestError(f"The body cannot be read: {error}.") from None
