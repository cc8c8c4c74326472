"""The endpoints that tell what the server does: `/metrics` for Prometheus, `/v1/stats` for people and programs."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.http.answers import json_response
from penstock.http.drain import is_ending
from penstock.observability.exposition import CONTENT_TYPE
from penstock.observability.monitor import Monitor


class FiguresApi:
    """Routes over one server's figures."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def routes(self) -> list[Route]:
        """The routes of `/metrics` and `/v1/stats`."""
        return [
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/v1/stats", self.stats, methods=["GET"]),
        ]

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`, in Prometheus' text format."""
        return Response(self._monitor.exposition(ending=is_ending(request.scope)), media_type=CONTENT_TYPE)

    async def stats(self, request: Request) -> Response:
        """`GET /v1/stats`"""
        return json_response(self._monitor.stats(ending=is_ending(request.scope)))
