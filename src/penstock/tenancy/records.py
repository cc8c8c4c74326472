"""What the database says of tenants, as a gateway holds it."""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import msgspec

from penstock.tenancy.settings import Settings

# Who asks; who administers; who may look at what they administer.
Role = Literal["member", "admin", "auditor"]
ROLES: tuple[Role, ...] = get_args(Role)
KeyState = Literal["usable", "expired", "revoked"]


class Organisation(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in seconds since 1970; `closed_at`: since then none of its keys is taken."""

    name: str
    settings: Settings
    created_at: float
    closed_at: float | None = None


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """Its name begins with that of its organisation and a dot."""

    name: str
    organisation: str
    settings: Settings
    created_at: float
    closed_at: float | None = None


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key, without the key.

    Attributes:
        project: that it asks for; None for those of administrators.
        shown: the beginning of the key.
        ends_streams: whether what is under way with it ends when it is revoked.
    """

    id: str
    role: Role
    project: str | None
    name: str
    shown: str
    digest: bytes
    settings: Settings
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    ends_streams: bool = False

    def state(self, now: float) -> KeyState:
        """Whether it is taken, and why not; a closed project's is not, either."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "usable"


class ListedKey(msgspec.Struct, frozen=True):
    """A key with the last day on which it was used, in UTC and as 2026-01-31; None where the ledger has none."""

    key: ApiKey
    last_used_on: str | None


class SetSplit(msgspec.Struct, frozen=True):
    """How large a split was made by an administrator, and with which revision."""

    percent: float
    revision: int


class Changes(msgspec.Struct, frozen=True):
    """What has changed until a revision.

    Attributes:
        splits: all that were ever set, by name.
    """

    revision: int
    organisations: Sequence[Organisation]
    projects: Sequence[Project]
    keys: Sequence[ApiKey]
    splits: Mapping[str, SetSplit] = {}


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """That something was changed, or refused.

    Attributes:
        actor: who did it: "cli/USER", the id of an administrator's key, or where a request came from.
        detail: JSON.
    """

    sequence: int
    at: float
    actor: str
    action: str
    subject: str
    detail: msgspec.Raw
