"""What a request reserves of its tenant's limits before it is sent anywhere."""

import contextlib

from starlette.types import Scope

from penstock.access.errors import NoPrice
from penstock.access.tenants import Tenant
from penstock.gateway.asked import Asked
from penstock.gateway.dispatch import Dispatch, Wanted
from penstock.gateway.errors import NoReplica
from penstock.gateway.headers import is_line
from penstock.gateway.limits import Spending


async def admitted(
    dispatch: Dispatch, tenant: Tenant, asked: Asked, wanted: Wanted, model: str, scope: Scope
) -> Spending | None:
    """What was reserved for a request for a model. Raises what `Limits.admit` does."""
    path = scope["path"]
    _, most = asked.bound(path) or ("", None)
    try:
        return await dispatch.limits.admit(
            tenant,
            path,
            model,
            wanted.tokens,
            most,
            wanted.abroad,
            answers=asked.answers,
            context=dispatch.replicas.described(model)[1] if most is None else 0,
            of_batch=is_line(scope),
        )
    except NoPrice:
        # One that no replica has needs none.
        with contextlib.suppress(NoReplica):
            dispatch.replicas.candidates(asked.model)
        raise
