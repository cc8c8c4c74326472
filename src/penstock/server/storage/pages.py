"""Parts of a list, in the order in which things were made."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec


class Page(msgspec.Struct, frozen=True):
    """Which part is wanted: at most `limit` things after the one with the id `after`, newest first unless ascending."""

    limit: int
    after: str | None = None
    ascending: bool = False


def select(
    connection: sqlite3.Connection, columns: Sequence[str], table: str, page: Page, purpose: str | None = None
) -> tuple[list[tuple[Any, ...]], bool] | None:
    """The page's rows and whether more follow; None where nothing has the id `after`."""
    conditions, values = [], []
    sign, order = (">", "ASC") if page.ascending else ("<", "DESC")
    if page.after is not None:
        found = connection.execute(f"SELECT sequence FROM {table} WHERE id = ?", (page.after,)).fetchone()
        if found is None:
            return None
        conditions.append(f"sequence {sign} ?")
        values.append(found[0])
    if purpose is not None:
        conditions.append("purpose = ?")
        values.append(purpose)
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    query = f"SELECT {', '.join(columns)} FROM {table} {where} ORDER BY sequence {order} LIMIT ?"
    rows = connection.execute(query, (*values, page.limit + 1)).fetchall()
    return rows[: page.limit], len(rows) > page.limit
