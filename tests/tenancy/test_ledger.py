"""The ledger: each entry once, whatever happens between a gateway and its database, and sums to the last digit."""

import asyncio
import csv
import io
import itertools
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from penstock.core.errors import ConfigurationError, InvalidParameter
from penstock.core.usage import Used
from penstock.database.connection import Database
from penstock.database.tables import ledger
from penstock.metering.prices import money
from penstock.tenancy.entries import Entry
from penstock.tenancy.journal import Journal
from penstock.tenancy.ledger import DatabaseLedger, enter, spent
from penstock.tenancy.statement import statement
from support.postgres import PostgresServer

NOON = 1_795_867_200.0  # 2026-11-28 12:00 UTC
_numbers = itertools.count()


def entry(**fields: object) -> Entry:
    plain = {"at": NOON, "organisation": "acme", "project": "acme.a", "key": "key_1", "model": "m", "replica": "r"}
    more = {"id": f"e{next(_numbers)}", "outcome": "answered", "used": Used(10, 4, 5), "is_estimated": False}
    return Entry(**{**plain, **more, "cost": 7, **fields})


def rows(database: Database) -> int:
    with database.begin() as connection:
        return connection.execute(select(func.count()).select_from(ledger)).scalar_one()


def test_an_entry_counts_once(database: Database) -> None:
    first, second = entry(), entry()
    enter(database, [first])
    enter(database, [first, second])
    assert rows(database) == 2


def test_sums_are_longer_than_integers_of_databases(database: Database) -> None:
    most = 2**63 - 1
    enter(database, [entry(cost=most) for _ in range(5)])
    enter(database, [entry(cost=None, key="key_2", is_estimated=True)])
    with database.begin() as connection:
        found = spent(connection, "2026-11")
        assert spent(connection, "2026-11-2_") == {}
    assert found == {"organisation/acme": 5 * most, "project/acme.a": 5 * most, "key/key_1": 5 * most, "key/key_2": 0}
    told = statement(database, "2026-11-28")
    assert told.cost == Decimal(5 * most).scaleb(-12) and told.requests == 6
    assert [(line.unpriced_requests, line.estimated_requests) for line in told.lines] == [(0, 0), (1, 1)]


LINES = st.tuples(
    st.sampled_from(["acme", "zoo"]), st.sampled_from("ab"), st.sampled_from(["m", 'n,"o']), st.integers(0, 10**15)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINES, max_size=20))
def test_statements_add_up(database: Database, made: list[tuple[str, str, str, int]]) -> None:
    with database.begin() as connection:
        connection.execute(ledger.delete())
    entries = [
        entry(organisation=organisation, project=f"{organisation}.{project}", model=model, cost=cost)
        for organisation, project, model, cost in made
    ]
    enter(database, entries)
    told = statement(database, "2026-11")
    assert told.cost == sum((money(each.cost or 0) for each in entries), Decimal(0))
    assert told.requests == len(entries) == sum(line.requests for line in told.lines)
    assert sum(line.output_tokens for line in told.lines) == 5 * len(entries)
    written = list(csv.DictReader(io.StringIO(told.csv)))
    assert sum((Decimal(row["cost"]) for row in written), Decimal(0)) == told.cost
    assert {row["model"] for row in written} == {each.model for each in entries}
    mine = statement(database, "2026-11", "zoo")
    assert mine.requests == sum(each.organisation == "zoo" for each in entries)


@pytest.mark.parametrize("period", ["", "2026", "2026-13", "2026-1", "2026-01-32", "%", "2026-11-28x"])
def test_periods_that_are_none(database: Database, period: str) -> None:
    with pytest.raises(InvalidParameter, match="give a month as 2026-01, or a day as 2026-01-31"):
        statement(database, period)


def test_a_day_ends_at_midnight_in_utc(database: Database) -> None:
    enter(database, [entry(at=NOON + 12 * 3600 - 0.001), entry(at=NOON + 12 * 3600)])
    assert [statement(database, day).requests for day in ("2026-11-28", "2026-11-29", "2026-11")] == [1, 1, 2]


def test_entries_wait_for_a_database_that_is_away(postgres: PostgresServer, tmp_path: Path) -> None:
    postgres.execute("CREATE DATABASE away")
    database = Database.open(postgres.url.replace("/postgres?", "/away?"))
    database.upgrade()
    made = DatabaseLedger.open(database, tmp_path)

    async def play() -> None:
        made.add(entry())
        assert await made.flush() and not made.waiting
        postgres.kill()
        try:
            made.add(entry())
            made.add(entry())
            assert not await made.flush() and len(made.waiting) == 2
        finally:
            postgres.start()
        assert await made.flush() and not made.waiting

    asyncio.run(play())
    assert rows(database) == 3
    database.close()


def test_a_killed_gateway_has_lost_nothing(database: Database, tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    killed = DatabaseLedger.open(database, journals)
    entries = [entry() for _ in range(5)]
    for each in entries[:3]:
        killed.add(each)
    asyncio.run(killed.flush())
    for each in entries[3:]:
        killed.add(each)
    # All that the process had is gone, but its file, whose last line it had not finished.
    killed._journal.close()
    (file,) = journals.iterdir()
    with file.open("ab") as written:
        written.write(b'{"id": "torn')
    after = DatabaseLedger.open(database, journals)
    assert after.waiting == entries[3:]
    asyncio.run(after.flush())
    assert rows(database) == 5 and file.read_bytes() == b""
    after._journal.close()


def test_each_gateway_has_a_journal_of_its_own(tmp_path: Path) -> None:
    (first, _), (second, _) = Journal.open(tmp_path), Journal.open(tmp_path)
    first.add(entry(id="one"))
    second.add(entry(id="two"))
    second.close()
    third, found = Journal.open(tmp_path)
    assert [each.id for each in found] == ["two"]
    first.close()
    third.close()


def test_what_the_database_never_takes_is_put_aside(database: Database, tmp_path: Path) -> None:
    made = DatabaseLedger.open(database, tmp_path / "journals")
    most = 2**63
    for used, model in ((Used(1, 0, 1), "a"), (Used(most, 0, 1), "b"), (Used(1, 0, 1), "c\0d")):
        made.add(entry(used=used, model=model))
    asyncio.run(made.flush())
    assert not made.waiting
    assert [line.model for line in statement(database, "2026-11").lines] == ["a", "c\ufffdd"]
    (aside,) = (tmp_path / "journals").glob("*.refused.jsonl")
    assert [json.loads(line)["entry"]["model"] for line in aside.read_text().splitlines()] == ["b"]
    made._journal.close()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="The ledger's journal in .* cannot be written"):
        Journal.open(tmp_path / "file" / "folder")


def test_the_last_entries_get_in_at_the_end(database: Database, tmp_path: Path) -> None:
    made = DatabaseLedger.open(database, tmp_path)

    async def play(add: Callable[[Entry], None]) -> None:
        async with made.watched():
            for _ in range(1500):
                add(entry())

    asyncio.run(play(made.add))
    assert rows(database) == 1500 and not made.waiting
