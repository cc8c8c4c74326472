"""The languages of a model that translates, as one of its replicas tells them."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.routing import Route

from penstock.gateway.dispatch import Dispatch
from penstock.gateway.headers import get_head
from penstock.gateway.stored import PassedOn

_PATH = "/languages"


class LanguagesApi:
    """The endpoint of `/languages`."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._replicas, self._keyed = dispatch.replicas, dispatch.keyed

    def routes(self) -> list[Route]:
        """The route of this endpoint."""
        return [Route(_PATH, self.languages, methods=["GET"])]

    async def languages(self, request: Request) -> PassedOn:
        """`GET /languages`: of the model that `?model=` names, or that translations get which name none.

        Raises ModelNotFound, NoReplica.
        """
        model = request.query_params.get("model") or self._replicas.made_for(_PATH)
        query = "" if model is None else urlencode({"model": model})
        replicas = [self._replicas.all[place] for place in self._replicas.candidates(model)]
        heads = [get_head(request.scope, each, _PATH, query, keyed=self._keyed) for each in replicas]
        return PassedOn(list(zip(replicas, heads, strict=True)))
