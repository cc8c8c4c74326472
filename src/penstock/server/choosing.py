"""Which model a request is for, where a server has several: that which it names."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.api.generation import GenerationResponse
from penstock.api.names import listed, model_not_found
from penstock.core.errors import EngineUnavailable, InvalidParameter, Overloaded, RequestError
from penstock.engine.interface import ModelInfo
from penstock.http.body import BodyReader, refuse_ahead
from penstock.server.served import Served

# Names are looked for in shorter bodies on the event loop.
INLINE_BODY_BYTES = 256 * 1024
# What only models do that take conversations, and that generate; what encoder–decoders do; what others do.
OF_CONVERSATIONS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/messages",
        "/v1/messages/count_tokens",
    }
)
OF_GENERATION = OF_CONVERSATIONS | {"/v1/completions"}
OF_TRANSLATION = frozenset({"/translate", "/languages"})
OF_VECTORS = frozenset({"/v1/embeddings"})

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
        if request.method == "GET":
            return self._of(None, request.scope["path"])
        # What all would refuse is not read.
        if not any(map(_takes_on, self._models)):
            return 0
        body = await self._bodies.read_ahead(request)
        if body is None:
            return 0
        try:
            if len(body) <= INLINE_BODY_BYTES:
                return self.of_body(body, request.scope["path"])
            return await asyncio.to_thread(self.of_body, body, request.scope["path"])
        except RequestError as error:
            refuse_ahead(request, error)
            return 0

    def _of(self, name: str | None, path: str) -> int:
        if name is None:
            numbers = range(len(self._models))
            return next((number for number in numbers if _is_made_for(self._models[number], path)), 0)
        number = self.number_of(name)
        if not _can(self._models[number], path) and (others := [each for each in self._models if _can(each, path)]):
            raise InvalidParameter(
                "model",
                f"{name!r} {_kind(self._models[number])}; {listed([each.names[0] for each in others])} can answer at "
                f"{path}, and {name!r} {_instead(self._models[number])}.",
            )
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


def _info(model: Served) -> ModelInfo | None:
    """What is known of a model; None until its engine is there."""
    try:
        return model.engine.model
    except EngineUnavailable:
        return None


def _can(model: Served, path: str) -> bool:
    """Whether it has what an endpoint needs. Of what is not known yet, it will say so itself."""
    info = _info(model)
    return info is None or _does(info, path)


def _does(info: ModelInfo, path: str) -> bool:
    if path in OF_TRANSLATION:
        return info.sourced is not None
    if info.sourced is not None:
        return path not in OF_CONVERSATIONS and path not in OF_VECTORS
    return info.generates or path not in OF_GENERATION


def _is_made_for(model: Served, path: str) -> bool:
    """Whether it does nothing else, or an endpoint does not ask for anything of the kind."""
    info = _info(model)
    if info is None or not _does(info, path):
        return False
    return not info.generates or path not in OF_VECTORS


def _kind(model: Served) -> str:
    """What a model is that cannot do what is asked for."""
    info = _info(model)
    if info is not None and info.sourced is not None:
        return "is an encoder–decoder and makes texts of texts"
    if info is not None and info.generates:
        return "is no encoder–decoder"
    return "is an encoder and generates nothing"


def _instead(model: Served) -> str:
    """What it does."""
    info = _info(model)
    if info is not None and info.sourced is not None:
        return "answers at /v1/completions and /translate"
    if info is not None and info.generates:
        return "answers at /v1/chat/completions"
    return "makes vectors at /v1/embeddings"
