"""How full limits are, of many owners, on a clock that stands."""

import asyncio
from decimal import Decimal

from penstock.access.allowances import OwnAllowances
from penstock.access.tenants import Bounds, Level
from penstock.gateway.in_use import limits_in_use
from penstock.gateway.limits import meters_of
from penstock.metering.meters import Charge
from penstock.tenancy.directory import Bounded

# 2026-11-28 12:00 UTC, and when that day and month end.
NOON, DAY_ENDS, MONTH_ENDS = 1_795_867_200.0, 1_795_910_400.0, 1_796_083_200.0
DAY = int(NOON) // 86400
CENT = 10**7


def owner(kind: str, name: str, **bounds: int) -> Bounded:
    return Bounded(name.partition(".")[0], name, Level(f"{kind}/{name}", Bounds(**bounds)))


def test_the_fullest_come_first_and_keys_last() -> None:
    owners = [
        owner("key", "acme.k", tokens_per_minute=100),
        owner("project", "acme.web", requests_per_minute=10, budget_per_month=50 * CENT),
        owner("organisation", "zoo", budget_per_day=2 * CENT, max_concurrent_requests=2),
        # More than are looked at in one turn.
        *(owner("project", f"zoo.p{number:03}", requests_per_minute=1000) for number in range(250)),
    ]
    amounts = {"requests": 5, "tokens": 100, "running": 1, "money": 3 * CENT // 2}

    async def run() -> None:
        allowances = OwnAllowances(lambda: NOON)
        for each in owners[:3]:
            charges = [Charge(meter, amounts[meter.unit]) for meter in meters_of(*each.level, DAY)]
            await allowances.reserve(each.organisation, charges)
        await allowances.reserve("zoo", [Charge(meter, 7) for meter in meters_of(*owners[-1].level, DAY)])
        found = await limits_in_use(owners, allowances, NOON)
        told = [(each.owner, each.limit, each.used, each.most, each.share, each.until) for each in found]
        assert told[:6] == [
            ("organisation/zoo", "budget_per_day", Decimal("0.015"), Decimal("0.02"), 0.75, DAY_ENDS),
            ("organisation/zoo", "max_concurrent_requests", 1, 2, 0.5, None),
            ("project/acme.web", "requests_per_minute", 5, 10, 0.5, None),
            ("project/acme.web", "budget_per_month", Decimal("0.015"), Decimal("0.5"), 0.03, MONTH_ENDS),
            ("project/zoo.p249", "requests_per_minute", 7, 1000, 0.007, None),
            ("project/zoo.p000", "requests_per_minute", 0, 1000, 0.0, None),
        ]
        assert told[-1] == ("key/acme.k", "tokens_per_minute", 100, 100, 1.0, None) and len(told) == 255
        # To look changes nothing.
        assert await limits_in_use(owners, allowances, NOON) == found

    asyncio.run(run())
