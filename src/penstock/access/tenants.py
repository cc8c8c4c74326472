"""Tenants: whose a request is, and what that changes on its way to the engine and to what is stored."""

import hashlib

import msgspec
from msgspec.structs import replace
from starlette.requests import Request

from penstock.api.resolve import Job

STATE = "tenant"


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One who may ask.

    Attributes:
        name: owns what is stored; empty where the server has no keys, and all clients are the same tenant.
        weight: how much of the engine the tenant has beside others; above 0.
        max_concurrent_requests: that are computed at a time; None for any number.
        max_stored_bytes: of files and results, and of stored responses; None for a share of what the server keeps.
    """

    name: str = ""
    weight: float = 1.0
    max_concurrent_requests: int | None = None
    max_stored_bytes: int | None = None


EVERYBODY = Tenant()


def tenant_of(request: Request) -> Tenant:
    """Whose the request is, as its key has said."""
    found: Tenant = request.scope.get("state", {}).get(STATE, EVERYBODY)
    return found


def job_of(tenant: Tenant, job: Job) -> Job:
    """The job as one of the tenant's."""
    if not tenant.name:
        return job
    salt = _salt(tenant.name, job.standing.cache_salt)
    standing = replace(job.standing, tenant=tenant.name, weight=tenant.weight, cache_salt=salt)
    return replace(job, standing=standing)


def _salt(name: str, asked: str) -> str:
    """Different for each pair of tenant and salt, so that no tenant's timing tells what another one has sent."""
    return hashlib.sha256(msgspec.json.encode((name, asked))).hexdigest()
