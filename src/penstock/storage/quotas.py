"""What a server keeps at most, and how much of that for each tenant."""

from collections.abc import Mapping, Sequence

import msgspec

from penstock.access.tenants import Tenant

DAY = 24 * 3600
# The share of all that a server keeps for one tenant whose key says nothing else, where there are several.
TENANT_SHARE = 0.25


class TenantQuota(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of what one tenant has; `bytes` are of files and results."""

    bytes: int
    files: int
    unfinished_batches: int
    batches: int


class StorageQuota(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one server's storage.

    Attributes:
        file_bytes, lines: of an input file; what OpenAI takes.
        line_bytes: of one line, as long as the body of a request may be.
        total_bytes: of all files, and of results that are no file yet; fifty of the largest inputs.
        files: how many; listing them all stays cheap.
        seconds_kept: the age at which files go, and batches that have ended; OpenAI's for batches.
        unfinished_batches: that wait or run; each may have `lines` lines to go.
        batches: that are remembered; beyond it those that ended first are forgotten.
        tenant_share: of each of these, what one tenant may take.
        tenant_bytes: what a tenant may take of `total_bytes`, where its key says so, by name.
    """

    file_bytes: int = 200 * 1000**2
    lines: int = 50_000
    line_bytes: int = 32 * 1024**2
    total_bytes: int = 10 * 1000**3
    files: int = 10_000
    seconds_kept: int = 30 * DAY
    unfinished_batches: int = 100
    batches: int = 10_000
    tenant_share: float = 1.0
    tenant_bytes: Mapping[str, int] = {}

    def of(self, owner: str) -> TenantQuota:
        """What is kept for one tenant."""

        def share(whole: int) -> int:
            return max(1, int(whole * self.tenant_share))

        return TenantQuota(
            bytes=self.tenant_bytes.get(owner, share(self.total_bytes)),
            files=share(self.files),
            unfinished_batches=share(self.unfinished_batches),
            batches=share(self.batches),
        )


def share_of(tenants: Sequence[Tenant]) -> float:
    """The part of the whole that each tenant may take. How many ask through one that asks for others is not known."""
    if any(each.for_others for each in tenants):
        return TENANT_SHARE
    return max(TENANT_SHARE, 1 / max(1, len(tenants)))
