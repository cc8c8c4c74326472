"""Whether a request is one of those on which another model is tried."""

from penstock.access.tenants import Tenant
from penstock.core.errors import RequestError
from penstock.gateway.asked import Asked
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.rules import renamed
from penstock.gateway.trials import conversation


def divided(
    dispatch: Dispatch, tenant: Tenant, path: str, asked: Asked, body: bytes, session: str | None
) -> tuple[Asked, bytes, str | None]:
    """The request, for the other model where it gets that, and the model that it has named then.

    `session` is what a header names. A request keeps its model where the other one is not there, or cannot answer it
    for its tenant.
    """
    kept = asked, body, None
    if asked.previous_response_id is not None:
        # It goes on where that is kept.
        return kept
    other = dispatch.splits.model(asked.model, conversation(asked, session))
    if other is None or other not in dispatch.models_for(tenant.permits):
        return kept
    new, content = renamed(asked, body, other)
    try:
        dispatch.way_out(new, path, content, tenant)
    except RequestError:
        return kept
    return new, content, asked.model
