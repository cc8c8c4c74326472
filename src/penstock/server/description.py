"""What the server tells of itself: its release, and the API's description, for programs and for people."""

from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock import __version__
from penstock.http.answers import json_response
from penstock.server.answers import Version
from penstock.server.docs_page import page
from penstock.server.endpoints import ENDPOINTS
from penstock.server.openapi import document


class DescriptionApi:
    """The endpoints; `keyed` is whether requests need a key, `simulated` which devices are simulated."""

    def __init__(self, *, keyed: bool, simulated: str | None = None) -> None:
        self._keyed = keyed
        self._version = Version(__version__, simulated)

    def routes(self) -> list[Route]:
        """The routes of these endpoints."""
        return [
            Route("/version", self.version, methods=["GET"]),
            Route("/openapi.json", self.description, methods=["GET"]),
            Route("/docs", self.page, methods=["GET"]),
        ]

    async def version(self, request: Request) -> Response:
        """`GET /version`"""
        return json_response(msgspec.to_builtins(self._version))

    async def description(self, request: Request) -> Response:
        """`GET /openapi.json`"""
        return json_response(_description(self._keyed))

    async def page(self, request: Request) -> Response:
        """`GET /docs`"""
        return Response(page(_description(self._keyed)), media_type="text/html")


@cache
def _description(keyed: bool) -> dict[str, Any]:
    return document(ENDPOINTS, __version__, keyed=keyed)
