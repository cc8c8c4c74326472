"""The models that a server serves, in the form of OpenAI's API: `/v1/models`."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.api.names import model_not_found
from penstock.engine.interface import EngineClient, ModelInfo
from penstock.http.answers import json_response


class ModelsApi:
    """The endpoints, over the engines of a server."""

    def __init__(self, engines: Sequence[EngineClient]) -> None:
        self._engines = engines

    def routes(self) -> list[Route]:
        """The routes of these endpoints."""
        return [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.one_model, methods=["GET"]),
        ]

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`"""
        return json_response({"object": "list", "data": list(self._cards().values())})

    async def one_model(self, request: Request) -> Response:
        """`GET /v1/models/{name}`"""
        name, cards = request.path_params["name"], self._cards()
        if name not in cards:
            raise model_not_found(name, [engine.model.name for engine in self._engines])
        return json_response(cards[name])

    def _cards(self) -> dict[str, dict[str, object]]:
        """By name. Raises EngineUnavailable before all models are there."""
        models = [engine.model for engine in self._engines]
        return {name: _model_card(model, name) for model in models for name in (model.name, *model.aliases)}


def _model_card(model: ModelInfo, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "penstock",
        "root": model.name,
        "max_model_len": model.max_model_len,
    }
