"""Why requests took as long as they did: `/v1/requests` and `/v1/requests/{id}/explain`."""

from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.access.tenants import tenant_of
from penstock.core.errors import InvalidParameter, RequestError
from penstock.http.answers import json_response
from penstock.observability.accounts import Accounts, listed
from penstock.observability.explain.explanation import RequestList

USUALLY_LISTED, MOST_LISTED = 20, 100
_ORDERS = ("newest", "slowest")


class RequestNotFound(RequestError):
    """No request of this tenant has this id, as far as is remembered."""

    code = "request_not_found"
    http_status = 404


class ExplainApi:
    """The endpoints.

    Args:
        accounts: of the requests to each model.
        whose: the tenant whose requests are told of; None for all tenants', which is the operator's to see.
    """

    def __init__(
        self,
        accounts: Sequence[Accounts],
        whose: Callable[[Request], str | None] = lambda request: tenant_of(request).name,
    ) -> None:
        self._accounts = accounts
        self._whose = whose

    def routes(self) -> list[Route]:
        """The routes of these endpoints."""
        return [
            Route("/v1/requests", self.list, methods=["GET"]),
            # Ids that clients give may have slashes in them.
            Route("/v1/requests/{id:path}/explain", self.one, methods=["GET"]),
        ]

    async def list(self, request: Request) -> Response:
        """`GET /v1/requests`: recent ones, the newest or the slowest first."""
        limit, slowest = read_listing(request)
        return json_response(RequestList("list", listed(self._accounts, self._whose(request), limit, slowest=slowest)))

    async def one(self, request: Request) -> Response:
        """`GET /v1/requests/{id}/explain`: where a request's time went, or has gone so far."""
        request_id = request.path_params["id"]
        found = (each.explain(request_id, self._whose(request)) for each in self._accounts)
        explanation = next((each for each in found if each is not None), None)
        if explanation is None:
            raise RequestNotFound(
                f"No request {request_id[:80]!r} of yours that generates or embeds is remembered here (any more); its "
                "id is in the header x-request-id of its response."
            )
        return json_response(explanation)


def read_listing(request: Request) -> tuple[int, bool]:
    """How many requests a query asks for, and whether for the slowest first. Raises InvalidParameter."""
    query = request.query_params
    for name in query:
        if name not in ("limit", "order"):
            raise InvalidParameter(name[:80], "is not a parameter of this list; leave it out.")
        if len(query.getlist(name)) > 1:
            raise InvalidParameter(name, "is there twice; send it once.")
    limit, order = query.get("limit", str(USUALLY_LISTED)), query.get("order", _ORDERS[0])
    if not (limit.isascii() and limit.isdigit() and len(limit) < 10 and 1 <= int(limit) <= MOST_LISTED):
        raise InvalidParameter("limit", f"{limit[:40]!r} is not a whole number in 1..{MOST_LISTED}.")
    if order not in _ORDERS:
        raise InvalidParameter("order", f"{order[:40]!r} is neither 'newest' nor 'slowest'.")
    return int(limit), order == "slowest"
