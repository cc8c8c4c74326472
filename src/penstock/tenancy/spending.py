"""What was used on each day, by organisation, project or model: what plots of it are made of."""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, cast, get_args

import msgspec
from sqlalchemy import ColumnElement, case, func, null, select

from penstock.core.errors import InvalidParameter
from penstock.database.connection import Database
from penstock.database.tables import ledger
from penstock.metering.prices import money
from penstock.tenancy.ledger import exact

By = Literal["organisation", "project", "model"]
# More than a year, so that a month can be seen beside the same one of last year.
MOST_DAYS = 400
MOST_NAMES = 50
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_BILLION = 10**9


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What one organisation, project or model has used, on one day or on all.

    Attributes:
        name: None for all that are not named, together.
        day: such as 2026-01-31; None for all days.
        unpriced_requests: those whose model had no price, so that they are not in the cost.
        cost: exactly, in the currency of prices.
    """

    name: str | None
    day: str | None = None
    requests: int
    unpriced_requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: Decimal


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """From the first day to the last one, both included.

    Attributes:
        totals: of all days; those who have spent most come first, and all that are not named come last.
        days: of each day on which something was used, in their order.
    """

    first: str
    last: str
    by: By
    totals: Sequence[Spent]
    days: Sequence[Spent]
    requests: int
    cost: Decimal


def spending(
    database: Database, first: str, last: str, by: str = "model", of: str | None = None, most: int = 10
) -> Spending:
    """What was used from one day to another.

    Args:
        by: what is told apart.
        of: an organisation, or a project, whose use is meant; None: of all.
        most: that are named; all others are one.

    Raises InvalidParameter, DatabaseUnavailable.
    """
    if by not in get_args(By):
        raise InvalidParameter("by", f"is {by[:80]!r}; there are {', '.join(get_args(By))}.")
    if not 1 <= most <= MOST_NAMES:
        raise InvalidParameter("most", f"is {most}; it must be 1 to {MOST_NAMES}.")
    begin, end = _day("first", first), _day("last", last)
    if not timedelta() <= end - begin < timedelta(days=MOST_DAYS):
        raise InvalidParameter("last", f"is {last}; it must be 0 to {MOST_DAYS - 1} days behind {first}.")
    # Of the columns that say when, this one has an index of its own.
    where = (ledger.c.at >= _moment(begin)) & (ledger.c.at < _moment(end + timedelta(days=1)))
    if of is not None:
        where &= (ledger.c.project if "." in of else ledger.c.organisation) == of
    column = ledger.c[by]
    with database.begin() as connection:
        sums = connection.execute(_sums(column.label("name")).where(where).group_by(column)).all()
        found = sorted((_spent(row) for row in sums), key=_rank)
        named = [each.name for each in found[:most]]
        name = case((column.in_(named), column), else_=null()).label("name")
        daily = _sums(ledger.c.day, name).where(where).group_by(ledger.c.day, name).order_by(ledger.c.day)
        days = [_spent(row, row.day) for row in connection.execute(daily)]
    totals = found[:most] + ([_together(found[most:])] if found[most:] else [])
    order = {each.name: place for place, each in enumerate(totals)}
    return Spending(
        first=first,
        last=last,
        by=cast(By, by),
        totals=totals,
        days=sorted(days, key=lambda each: (each.day, order[each.name])),
        requests=sum(each.requests for each in totals),
        cost=sum((each.cost for each in totals), Decimal(0)),
    )


def _sums(*by: ColumnElement[Any]) -> Any:
    return select(
        *by,
        func.count().label("requests"),
        (func.count() - func.count(ledger.c.cost)).label("unpriced"),
        func.sum(ledger.c.prompt).label("prompt"),
        func.sum(ledger.c.cached).label("cached"),
        func.sum(ledger.c.output).label("output"),
        func.sum(ledger.c.cost // _BILLION).label("high"),
        func.sum(ledger.c.cost % _BILLION).label("low"),
    )


def _spent(row: Any, day: str | None = None) -> Spent:
    return Spent(
        name=row.name,
        day=day,
        requests=row.requests,
        unpriced_requests=row.unpriced,
        prompt_tokens=int(row.prompt),
        cached_tokens=int(row.cached),
        output_tokens=int(row.output),
        cost=money(exact(row.high, row.low)),
    )


def _rank(each: Spent) -> tuple[Decimal, int, str]:
    """The order of those who have spent most; of those whose models have no price, who has used most tokens."""
    return -each.cost, -(each.prompt_tokens + each.output_tokens), each.name or ""


def _together(others: Sequence[Spent]) -> Spent:
    return Spent(
        name=None,
        requests=sum(each.requests for each in others),
        unpriced_requests=sum(each.unpriced_requests for each in others),
        prompt_tokens=sum(each.prompt_tokens for each in others),
        cached_tokens=sum(each.cached_tokens for each in others),
        output_tokens=sum(each.output_tokens for each in others),
        cost=sum((each.cost for each in others), Decimal(0)),
    )


def _day(name: str, text: str) -> date:
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise InvalidParameter(name, f"is {text[:80]!r}; give a day as 2026-01-31.")


def _moment(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
