"""Lists in pages, as OpenAI's clients ask for them and read them."""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from penstock.core.errors import InvalidParameter
from penstock.storage.pagination import PageRequest


def read_page(request: Request, *, usual: int, most: int, others: Sequence[str] = ()) -> PageRequest:
    """The page that a query asks for. Raises InvalidParameter, also for parameters that are not known or `others`."""
    query = request.query_params
    for name in query:
        if name not in ("after", "limit", *others):
            raise InvalidParameter(name[:80], "is not a parameter of this list; leave it out.")
        if len(query.getlist(name)) > 1:
            raise InvalidParameter(name, "is there twice; send it once.")
    limit = query.get("limit", str(usual))
    if not limit.isascii() or not limit.isdigit() or len(limit) > 9 or not 1 <= int(limit) <= most:
        raise InvalidParameter("limit", f"{limit[:40]!r} is not a whole number in 1..{most}.")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidParameter("order", f"{order[:40]!r} is neither 'asc' nor 'desc'.")
    return PageRequest(int(limit), query.get("after"), order == "asc")


def list_page(items: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    """A page of a list in OpenAI's form; `more` says whether another follows."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": more,
    }
