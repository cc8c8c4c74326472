"""The meters of what is bounded: of keys, projects and organisations, and of providers."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from penstock.access.tenants import Bounds
from penstock.metering.meters import Meter
from penstock.metering.prices import TRILLIONTHS
from penstock.tenancy.settings import BILLIONTHS

MINUTE = 60.0
DAY = 86400
_A_BILLIONTH: int = TRILLIONTHS // BILLIONTHS


def in_billionths(trillionths: int) -> int:
    """A cost as meters count money, rounded up."""
    return -(-trillionths // _A_BILLIONTH)


@lru_cache(maxsize=10_000)
def meters_of(owner: str, bounds: Bounds, day: int) -> tuple[Meter, ...]:
    """All of a level, with budgets of the day (since 1970, in UTC) and its month."""
    found = []
    if bounds.requests_per_minute is not None:
        found.append(Meter(owner, "requests", bounds.requests_per_minute, MINUTE))
    if bounds.tokens_per_minute is not None:
        found.append(Meter(owner, "tokens", bounds.tokens_per_minute, MINUTE))
    if bounds.max_concurrent_requests is not None:
        found.append(Meter(owner, "running", bounds.max_concurrent_requests))
    today = datetime.fromtimestamp(day * DAY, UTC)
    if bounds.budget_per_day is not None:
        until = (today + timedelta(days=1)).timestamp()
        found.append(Meter(owner, "money", bounds.budget_per_day, None, f"day {today:%Y-%m-%d}", until))
    if bounds.budget_per_month is not None:
        until = (today.replace(day=1) + timedelta(days=32)).replace(day=1).timestamp()
        found.append(Meter(owner, "money", bounds.budget_per_month, None, f"month {today:%Y-%m}", until))
    return tuple(found)
