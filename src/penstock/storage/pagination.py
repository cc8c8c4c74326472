"""Parts of a list, in the order in which things were made."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec


class PageRequest(msgspec.Struct, frozen=True):
    """Which part is wanted: at most `limit` things after the one with the id `after`, newest first unless ascending."""

    limit: int
    after: str | None = None
    ascending: bool = False


def select(
    connection: sqlite3.Connection,
    columns: Sequence[str],
    table: str,
    owner: str,
    page: PageRequest,
    purpose: str | None,
) -> tuple[list[tuple[Any, ...]], bool] | None:
    """The page's rows and whether more follow; None where nothing of the owner's has the id `after`."""
    conditions: list[str] = ["owner = ?"]
    values: list[Any] = [owner]
    sign, order = (">", "ASC") if page.ascending else ("<", "DESC")
    if page.after is not None:
        query = f"SELECT sequence FROM {table} WHERE id = ? AND owner = ?"
        found = connection.execute(query, (page.after, owner)).fetchone()
        if found is None:
            return None
        conditions.append(f"sequence {sign} ?")
        values.append(found[0])
    if purpose is not None:
        conditions.append("purpose = ?")
        values.append(purpose)
    where = " AND ".join(conditions)
    query = f"SELECT {', '.join(columns)} FROM {table} WHERE {where} ORDER BY sequence {order} LIMIT ?"
    rows = connection.execute(query, (*values, page.limit + 1)).fetchall()
    return rows[: page.limit], len(rows) > page.limit
