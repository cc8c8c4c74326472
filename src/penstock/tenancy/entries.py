"""What one request has used, as the ledger has it."""

import time
import uuid
from typing import Protocol

import msgspec

from penstock.access.tenants import Tenant
from penstock.core.usage import Used


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One request that was sent to a replica, or answered from the answer cache.

    Attributes:
        id: which no other has: an entry that is kept twice counts once.
        at: when it ended, in seconds since 1970.
        key: the id of its key.
        replica: the last that was sent it; empty where none was.
        outcome: how it ended; `cached`: with an answer that was given before, which costs nothing.
        is_estimated: whether nothing said what it has used, so that it was guessed.
        cost: in trillionths; None where its model has no price.
        is_batch: whether it was a line of a batch.
    """

    id: str
    at: float
    organisation: str
    project: str
    key: str
    model: str
    replica: str
    outcome: str
    used: Used
    is_estimated: bool
    cost: int | None
    is_batch: bool = False


def entry_of(
    tenant: Tenant,
    model: str,
    replica: str,
    outcome: str,
    used: Used | None,
    cost: int | None,
    *,
    is_estimated: bool,
    is_batch: bool,
) -> Entry:
    """A new one, of a request that ends now; `used` is None where it was not answered."""
    return Entry(
        id=uuid.uuid4().hex,
        at=time.time(),
        organisation=tenant.organisation,
        project=tenant.name,
        key=tenant.key,
        model=model,
        replica=replica,
        outcome=outcome,
        used=used or Used(0, 0, 0),
        is_estimated=is_estimated,
        cost=cost,
        is_batch=is_batch,
    )


class Ledger(Protocol):
    """Where it is kept what requests have used."""

    @property
    def away(self) -> str | None:
        """Why the database does not answer; None while it does."""

    @property
    def pending(self) -> int:
        """How many entries it does not have yet."""

    def add(self, entry: Entry) -> None:
        """Keep it, without waiting for that."""
