"""The endpoints that tell what the server does: `/metrics` for Prometheus, `/v1/stats` for people and programs."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.http.answers import json_response
from penstock.http.drain import is_ending
from penstock.observability.exposition import CONTENT_TYPE
from penstock.observability.monitor import Monitors


class FiguresApi:
    """Routes over one server's figures; `number_of` says which of its models has a name, or raises ModelNotFound."""

    def __init__(self, monitors: Monitors, number_of: Callable[[str], int]) -> None:
        self._monitors = monitors
        self._number_of = number_of

    def routes(self) -> list[Route]:
        """The routes of `/metrics` and `/v1/stats`."""
        return [
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/v1/stats", self.stats, methods=["GET"]),
        ]

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`, in Prometheus' text format."""
        return Response(self._monitors.exposition(ending=is_ending(request.scope)), media_type=CONTENT_TYPE)

    async def stats(self, request: Request) -> Response:
        """`GET /v1/stats`: of the model that `?model=` names, or of the first."""
        name = request.query_params.get("model")
        number = 0 if name is None else self._number_of(name)
        return json_response(self._monitors.stats(number, ending=is_ending(request.scope)))
