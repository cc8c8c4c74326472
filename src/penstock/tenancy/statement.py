"""What was used in a month or on a day, by organisation, project, key and model; it adds up to the last token."""

import csv
import io
import re
from collections.abc import Sequence
from decimal import Decimal

import msgspec
from sqlalchemy import ColumnElement, case, func, select, true

from penstock.core.errors import InvalidParameter
from penstock.database.connection import Database
from penstock.database.tables import keys, ledger
from penstock.metering.prices import money
from penstock.tenancy.ledger import exact

_DAYS = re.compile(r"\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?")
_BILLION = 10**9


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What one key has used of one model.

    Attributes:
        key: its id; `key_name` is what it is called.
        requests: that were sent to a replica, or answered from the answer cache.
        cached_answers: those of them that were answered from the answer cache, and cost nothing.
        estimated_requests: those of them whose answers did not say what they used.
        unpriced_requests: those of them whose model had no price, so that they are not in the cost.
        prompt_tokens, cached_tokens, output_tokens: the cached ones are among those of prompts.
        cost: exactly, in the currency of prices.
    """

    organisation: str
    project: str
    key: str
    key_name: str
    model: str
    requests: int
    cached_answers: int
    estimated_requests: int
    unpriced_requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: Decimal


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """All lines of a period ("2026-01" or "2026-01-31"), and their sum."""

    period: str
    lines: Sequence[Line]
    requests: int
    cost: Decimal

    @property
    def csv(self) -> str:
        """The lines as CSV, with a head."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("period", *Line.__struct_fields__))
        for line in self.lines:
            values = (getattr(line, name) for name in Line.__struct_fields__)
            writer.writerow((self.period, *(f"{each:f}" if isinstance(each, Decimal) else each for each in values)))
        return text.getvalue()


def statement(database: Database, period: str, organisation: str | None = None) -> Statement:
    """Of a month or day, of all or of one organisation. Raises InvalidParameter, DatabaseUnavailable."""
    if not _DAYS.fullmatch(period):
        raise InvalidParameter("period", f"is {period[:80]!r}; give a month as 2026-01, or a day as 2026-01-31.")
    where = ledger.c.day.startswith(period, autoescape=True)
    if organisation is not None:
        where &= ledger.c.organisation == organisation
    by = (ledger.c.organisation, ledger.c.project, ledger.c.key, ledger.c.model)
    wanted = (
        select(
            *by,
            func.max(keys.c.name).label("key_name"),
            func.count().label("requests"),
            _count(ledger.c.outcome == "cached").label("cached_answers"),
            _count(ledger.c.is_estimated == true()).label("estimated"),
            _count(ledger.c.cost.is_(None)).label("unpriced"),
            func.sum(ledger.c.prompt).label("prompt"),
            func.sum(ledger.c.cached).label("cached"),
            func.sum(ledger.c.output).label("output"),
            func.sum(ledger.c.cost // _BILLION).label("high"),
            func.sum(ledger.c.cost % _BILLION).label("low"),
        )
        .select_from(ledger.outerjoin(keys, keys.c.id == ledger.c.key))
        .where(where)
        .group_by(*by)
        .order_by(*by)
    )
    with database.begin() as connection:
        rows = connection.execute(wanted).all()
    lines = [
        Line(
            organisation=row.organisation,
            project=row.project,
            key=row.key,
            key_name=row.key_name or "",
            model=row.model,
            requests=row.requests,
            cached_answers=row.cached_answers,
            estimated_requests=row.estimated,
            unpriced_requests=row.unpriced,
            prompt_tokens=int(row.prompt),
            cached_tokens=int(row.cached),
            output_tokens=int(row.output),
            cost=money(exact(row.high, row.low)),
        )
        for row in rows
    ]
    total = sum((line.cost for line in lines), Decimal(0))
    return Statement(period=period, lines=lines, requests=sum(line.requests for line in lines), cost=total)


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)
