"""Parts of a list, in the order in which things were made."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Column, Connection, Table, select


class PageRequest(msgspec.Struct, frozen=True):
    """Which part is wanted: at most `limit` things after the one with the id `after`, newest first unless ascending."""

    limit: int
    after: str | None = None
    ascending: bool = False


def select_page(
    connection: Connection,
    table: Table,
    columns: Sequence[Column[Any]],
    owner: str,
    page: PageRequest,
    purpose: str | None = None,
) -> tuple[Sequence[Sequence[Any]], bool] | None:
    """The page's rows and whether more follow; None where nothing of the owner's has the id `after`."""
    sequence = table.c.sequence
    query = select(*columns).where(table.c.owner == owner)
    if page.after is not None:
        last = select(sequence).where(table.c.id == page.after, table.c.owner == owner)
        after = connection.execute(last).scalar_one_or_none()
        if after is None:
            return None
        query = query.where(sequence > after if page.ascending else sequence < after)
    if purpose is not None:
        query = query.where(table.c.purpose == purpose)
    query = query.order_by(sequence if page.ascending else sequence.desc()).limit(page.limit + 1)
    rows = connection.execute(query).all()
    return rows[: page.limit], len(rows) > page.limit
