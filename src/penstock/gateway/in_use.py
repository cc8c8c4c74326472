"""How much of their limits organisations, projects and keys use now, as administrators see it."""

import asyncio
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

import msgspec

from penstock.access.allowances import Allowances
from penstock.gateway.meters import meters_of
from penstock.metering.meters import Meter
from penstock.tenancy.directory import Bounded
from penstock.tenancy.settings import BILLIONTHS

_DAY = 86400
# Owners that are looked at before others of this gateway get their turn.
_AT_ONCE = 100
_LIMITS = {"requests": "requests_per_minute", "tokens": "tokens_per_minute", "running": "max_concurrent_requests"}


class InUse(msgspec.Struct, frozen=True, kw_only=True):
    """What is used of one limit.

    Attributes:
        owner: whose it is: "key/ID", "project/NAME" or "organisation/NAME".
        name: what the owner is called.
        limit: the setting, such as "requests_per_minute".
        used: requests or tokens, or money in the currency of prices; with what is reserved.
        share: of `most`; more than 1 where the limit was lowered.
        until: when a budget's period ends, in seconds since 1970; None for other limits.
    """

    owner: str
    name: str
    limit: str
    used: int | Decimal
    most: int | Decimal
    share: float
    until: float | None


async def limits_in_use(bounded: Iterable[Bounded], allowances: Allowances, now: float) -> list[InUse]:
    """Of all limits of these, the fullest first; those of keys come behind those of projects."""
    found: list[InUse] = []
    day = int(now) // _DAY
    for group, owners in itertools.groupby(sorted(bounded, key=lambda each: each.organisation), _organisation):
        for some in _parts(list(owners)):
            meters = [(each.name, meter) for each in some for meter in meters_of(*each.level, day)]
            used = await allowances.look(group, [meter for _, meter in meters])
            found += [_in_use(name, meter, each) for (name, meter), each in zip(meters, used, strict=True)]
            await asyncio.sleep(0)
    return sorted(found, key=lambda each: (each.owner.startswith("key/"), -each.share, each.owner, each.limit))


def _organisation(bounded: Bounded) -> str:
    return bounded.organisation


def _parts(owners: Sequence[Bounded]) -> Iterator[Sequence[Bounded]]:
    return (owners[first : first + _AT_ONCE] for first in range(0, len(owners), _AT_ONCE))


def _in_use(name: str, meter: Meter, used: int) -> InUse:
    is_money = meter.unit == "money"
    return InUse(
        owner=meter.owner,
        name=name,
        limit=f"budget_per_{meter.period.partition(' ')[0]}" if is_money else _LIMITS[meter.unit],
        used=Decimal(used) / BILLIONTHS if is_money else used,
        most=Decimal(meter.most) / BILLIONTHS if is_money else meter.most,
        share=used / meter.most,
        until=None if math.isinf(meter.until) else meter.until,
    )
