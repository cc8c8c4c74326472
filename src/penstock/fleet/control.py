"""What `penstock fleet` asks of a fleet that runs: HTTP on a unix socket, which only its user can open."""

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.core.errors import ConfigurationError, RequestError
from penstock.fleet.description import FleetDescription
from penstock.fleet.supervisor import Supervisor
from penstock.http.answers import json_response
from penstock.http.body import BodyReader
from penstock.http.error_bodies import Dialects, ErrorHandlers

SOCKET = "control"
_MOST_BYTES = 4 << 20

Body = TypeVar("Body")


class Scaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /scale`; without a number, it follows the load."""

    model: str
    replicas: int | None = None


class Draining(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /drain`."""

    replica: str


class Control:
    """The application, in front of a supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._bodies = BodyReader(_MOST_BYTES)

    def application(self) -> Starlette:
        """It as ASGI takes it."""
        return Starlette(
            routes=[
                Route("/status", self._status, methods=["GET"]),
                Route("/scale", self._scale, methods=["POST"]),
                Route("/drain", self._drain, methods=["POST"]),
                Route("/update", self._update, methods=["POST"]),
                Route("/down", self._down, methods=["POST"]),
            ],
            exception_handlers=ErrorHandlers(Dialects()).all(),
        )

    async def _status(self, request: Request) -> Response:
        return json_response(self._supervisor.status())

    async def _scale(self, request: Request) -> Response:
        asked = await self._body(request, Scaling)
        with _told():
            self._supervisor.scale(asked.model, asked.replicas)
        return json_response(self._supervisor.status())

    async def _drain(self, request: Request) -> Response:
        asked = await self._body(request, Draining)
        with _told():
            self._supervisor.drain(asked.replica)
        return json_response(self._supervisor.status())

    async def _update(self, request: Request) -> Response:
        fleet = await self._body(request, FleetDescription)
        with _told():
            await self._supervisor.update(fleet.check())
        return json_response(self._supervisor.status())

    async def _down(self, request: Request) -> Response:
        self._supervisor.end()
        return json_response(self._supervisor.status())

    async def _body(self, request: Request, kind: type[Body]) -> Body:
        try:
            return msgspec.json.decode(await self._bodies.read(request), type=kind)
        except msgspec.DecodeError as error:
            raise RequestError(f"The body cannot be read: {error}.") from None


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What cannot be is the asker's mistake, not the server's. Raises RequestError."""
    try:
        yield
    except ConfigurationError as error:
        raise RequestError(error.message) from None
