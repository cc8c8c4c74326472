"""Tenants: whose a request is, and what that changes on its way to the engine and to what is stored."""

import hashlib

import msgspec
from msgspec.structs import replace
from starlette.requests import Request

from penstock.core.request import Standing

STATE = "tenant"
# Of a request whose key asks for others: whose it is, and the weight of that tenant.
TENANT_HEADER = b"x-penstock-tenant"
WEIGHT_HEADER = b"x-penstock-weight"


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One who may ask.

    Attributes:
        name: owns what is stored; empty where the server has no keys, and all clients are the same tenant.
        weight: how much of the engine the tenant has beside others; above 0.
        max_concurrent_requests: that are computed at a time; None for any number.
        requests_per_minute, tokens_per_minute: that it may use, which a gateway counts; None for any number.
        max_stored_bytes: of files and results, and of stored responses; None for a share of what the server keeps.
        for_others: whether it asks for others, and may say for which tenant, as a gateway with keys of its own does.
    """

    name: str = ""
    weight: float = 1.0
    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_stored_bytes: int | None = None
    for_others: bool = False


EVERYBODY = Tenant()


def tenant_of(request: Request) -> Tenant:
    """Whose the request is, as its key has said."""
    found: Tenant = request.scope.get("state", {}).get(STATE, EVERYBODY)
    return found


def standing_of(tenant: Tenant, asked: Standing) -> Standing:
    """How a tenant's request stands to others; `asked` is what it says of that itself."""
    if not tenant.name:
        return asked
    salt = _salt(tenant.name, asked.cache_salt)
    return replace(asked, tenant=tenant.name, weight=tenant.weight, cache_salt=salt)


def _salt(name: str, asked: str) -> str:
    """Different for each pair of tenant and salt, so that no tenant's timing tells what another one has sent."""
    return hashlib.sha256(msgspec.json.encode((name, asked))).hexdigest()
