"""Which model a request is for, where a server has several: that which it names."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.api import tasks
from penstock.api.generation import GenerationResponse
from penstock.api.made_for import TASKS, can, made_for
from penstock.api.names import listed, model_not_found
from penstock.core.errors import EngineUnavailable, InvalidParameter, Overloaded, RequestError
from penstock.http.body import BodyReader, refuse_ahead
from penstock.server.served import Served, info_of

# Names are looked for in shorter bodies on the event loop.
INLINE_BODY_BYTES = 256 * 1024


Endpoint = Callable[[Request], Awaitable[Response | GenerationResponse]]


class Choice:
    """Chooses among the models of a server.

    Args:
        models: at least one; the first is taken where nothing says which.
        bodies: what reads requests.
    """

    def __init__(self, models: Sequence[Served], bodies: BodyReader) -> None:
        self._models = models
        self._bodies = bodies

    def routes(self, routes: Sequence[Sequence[Route]]) -> list[Route]:
        """One route for those of all models to a path; `routes` has by model its own, in the same order."""
        if len(routes) == 1:
            return list(routes[0])
        return [
            Route(alike[0].path, self._endpoint([route.endpoint for route in alike]), methods=alike[0].methods)
            for alike in zip(*routes, strict=True)
        ]

    def of_body(self, body: bytes, path: str) -> int:
        """The number of the model that a request is for. Raises RequestError where no model can serve it."""
        return 0 if len(self._models) == 1 else self._of(_named_in(body), path)

    def number_of(self, name: str) -> int:
        """The number of the model of this name. Raises ModelNotFound."""
        for number, model in enumerate(self._models):
            if name in model.names:
                return number
        raise model_not_found(name, [model.names[0] for model in self._models if model.names])

    def _endpoint(self, endpoints: Sequence[Endpoint]) -> Endpoint:
        async def hand_on(request: Request) -> Response | GenerationResponse:
            return await endpoints[await self._of_request(request)](request)

        return hand_on

    async def _of_request(self, request: Request) -> int:
        """The number of the model that a request is for; whatever is wrong with it, that model's endpoint will say."""
        path = request.scope["path"]
        if request.method != "POST":
            return self._of(request.query_params.get("model"), path)
        # What all would refuse is not read.
        if not any(map(_takes_on, self._models)):
            return 0
        body = await self._bodies.read_ahead(request)
        if body is None:
            return 0
        try:
            if len(body) <= INLINE_BODY_BYTES:
                return self.of_body(body, path)
            return await asyncio.to_thread(self.of_body, body, path)
        except RequestError as error:
            refuse_ahead(request, error, body)
            return 0

    def _of(self, name: str | None, path: str) -> int:
        task, infos = TASKS.get(path), [info_of(model.engine) for model in self._models]
        if name is None:
            return made_for(task, infos) or 0
        number = self.number_of(name)
        able = [each for each, info in enumerate(infos) if can(info, task)]
        if able and number not in able:
            others = listed([self._models[each].names[0] for each in able])
            what = tasks.does(self._models[number].engine.model)
            raise InvalidParameter("model", f"{name!r} cannot answer at {path}: {what}; {others} can.")
        return number


class _Named(msgspec.Struct):
    """The field of a body that matters here."""

    model: Any = None


def _named_in(body: bytes) -> str | None:
    """The model that a body names; None where it names none, or is not what its endpoint will take."""
    try:
        name = msgspec.json.decode(body, type=_Named).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return name if isinstance(name, str) else None


def _takes_on(model: Served) -> bool:
    try:
        model.service.check()
    except (EngineUnavailable, Overloaded):
        return False
    return True
