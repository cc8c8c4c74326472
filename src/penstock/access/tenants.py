"""Tenants: whose a request is, and what that changes on its way to the engine and to what is stored."""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from starlette.requests import Request

from penstock.core.request import Standing

STATE = "tenant"
# Of a request whose key asks for others: whose it is, and the weight of that tenant.
TENANT_HEADER = b"x-penstock-tenant"
WEIGHT_HEADER = b"x-penstock-weight"
# The longest that a gateway may give an answer again: 30 days.
MOST_CACHED_SECONDS = 30 * 86400


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be used; None for any amount.

    Attributes:
        max_concurrent_requests: that are computed at a time.
        requests_per_minute, tokens_per_minute: that a gateway counts.
        budget_per_day, budget_per_month: in UTC, in billionths of the currency of prices.
    """

    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    budget_per_day: int | None = None
    budget_per_month: int | None = None

    @property
    def has_budget(self) -> bool:
        """Whether some of what is used is counted in money."""
        return self.budget_per_day is not None or self.budget_per_month is not None


# The privacy class of own machines, which see all requests.
OWN = "own"


class Level(NamedTuple):
    """A key, or a project or organisation that it belongs to, with bounds of its own.

    Attributes:
        owner: such as "key/mobile".
    """

    owner: str
    bounds: Bounds


def levels_of(owners: Iterable[tuple[str, Bounds]]) -> tuple[Level, ...]:
    """The levels that bound something."""
    return tuple(Level(owner, bounds) for owner, bounds in owners if bounds != Bounds())


class Permits(msgspec.Struct, frozen=True, kw_only=True):
    """What may be asked for at all; None for anything.

    Attributes:
        models: by name.
        endpoints: by path.
        max_context_tokens: of a request's prompt and its answer.
        max_output_tokens: of an answer.
        privacy_classes: of those who may see a request; own machines are of the class "own".
        background: whether its requests come after those of all others.
    """

    models: frozenset[str] | None = None
    endpoints: frozenset[str] | None = None
    max_context_tokens: int | None = None
    max_output_tokens: int | None = None
    privacy_classes: frozenset[str] | None = None
    background: bool = False


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One who may ask.

    Attributes:
        name: owns what is stored; empty where the server has no keys, and all clients are the same tenant.
        weight: how much of the engine the tenant has beside others; above 0.
        levels: all whose bounds hold for it.
        permits: what it may ask for.
        organisation: that it belongs to, with whose other tenants it shares bounds; empty: it is by itself.
        key: the id of the key that it asks with; empty where there are no ids.
        max_stored_bytes: of files and results, and of stored responses; None for a share of what the server keeps.
        answer_cache_seconds: for which a gateway may give the same answer again; 0: it asks a replica each time.
        for_others: whether it asks for others, and may say for which tenant, as a gateway with keys of its own does.
    """

    name: str = ""
    weight: float = 1.0
    levels: tuple[Level, ...] = ()
    permits: Permits = Permits()
    organisation: str = ""
    key: str = ""
    max_stored_bytes: int | None = None
    answer_cache_seconds: int = 0
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
