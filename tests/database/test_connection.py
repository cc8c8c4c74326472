"""Databases: what addresses there are, what is said of those that cannot be used, and versions of tables."""

import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import func, insert, inspect, select, text

from penstock.core.errors import ConfigurationError
from penstock.database.connection import Database, database_url
from penstock.database.errors import DatabaseUnavailable
from penstock.database.tables import audit, files, keys, ledger, metadata, organisations, projects, state
from penstock.database.versions import BASE, versions

ROW = {"id": "a", "at": 1.5, "day": "2026-01-31", "organisation": "o", "project": "o.p", "key": "k", "model": "m"}
HIDDEN = {"shown": "s", "sha256": b"\0" * 32, "ends_streams": False}
ENTRY = {**ROW, "replica": "r", "outcome": "answered", "is_batch": False, "is_estimated": False}


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ("postgresql://me@host/name", "postgresql+psycopg://me@host/name"),
        ("postgres://me@host:5433/name", "postgresql+psycopg://me@host:5433/name"),
        ("sqlite:////tmp/a.sqlite", "sqlite:////tmp/a.sqlite"),
        ("/tmp/a.sqlite", "sqlite:////tmp/a.sqlite"),
        ("./a", "sqlite:///./a"),
        ("tenants.db", "sqlite:///tenants.db"),
    ],
)
def test_addresses(given: str, means: str) -> None:
    assert str(database_url(given)) == means


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "is no address of a database"),
        ("host", "is no address of a database"),
        ("mysql://me:secret@host/name", "is of 'mysql'; postgresql:// and sqlite:// are known"),
        ("sqlite://", "has no file"),
        ("sqlite:///:memory:", "has no file"),
        ("sqlite:////nowhere/at/all/a.sqlite", "the folder /nowhere/at/all is not there"),
    ],
)
def test_addresses_that_cannot_be(given: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        database_url(given)
    assert says in caught.value.message and "secret" not in caught.value.message


def test_what_does_not_answer_is_said_without_its_password(tmp_path: Path) -> None:
    away = Database.open(f"postgresql://me:secret@/name?host={tmp_path}")
    with pytest.raises(DatabaseUnavailable) as caught:
        away.upgrade()
    assert "does not answer" in caught.value.message and "secret" not in caught.value.message


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").write_text("This is a letter, and has been one for as long as anyone remembers." * 20)
    with pytest.raises(ConfigurationError, match="cannot be used .file is not a database"):
        Database.open(str(tmp_path / "a.sqlite")).upgrade()


def test_tables_are_those_that_migrations_make(database: Database) -> None:
    with database.begin() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_versions_go_up_and_down_with_what_is_there(database: Database) -> None:
    """Each step down and up again leaves a database whose tables take what they took before."""
    for version in (*versions()[::-1], BASE):
        database.migrate(version)
    with database.begin() as connection:
        assert set(inspect(connection).get_table_names()) <= {"alembic_version"}
    for version in versions():
        database.migrate(version)
    database.upgrade()
    with database.begin() as connection:
        connection.execute(insert(ledger).values(**ENTRY, prompt=1, cached=0, output=2, cost=2**62))
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    with pytest.raises(ConfigurationError, match="no version '77' of tables; there are base, 0001"):
        database.migrate("77")


def test_data_of_the_last_release_stay_on_the_way_up_and_down(database: Database) -> None:
    """Tenants of version 0001; what servers keep is there from 0002 on."""
    fields = {"settings": "{}", "created_at": 1.0, "revision": 1}
    database.migrate("0001")
    with database.begin() as connection:
        connection.execute(insert(organisations).values(name="o", **fields))
        connection.execute(insert(projects).values(name="o.p", organisation="o", **fields))
        connection.execute(insert(keys).values(id="k", role="member", project="o.p", name="n", **fields, **HIDDEN))
        connection.execute(insert(ledger).values(**ENTRY, prompt=1, cached=0, output=2, cost=2**62))
        tables = (organisations, projects, keys, ledger, state)
        before = [connection.execute(select(each)).all() for each in tables]
    stores = set()
    for _ in range(2):
        database.migrate("0002")
        with database.begin() as connection:
            is_store = state.c.name == "store"
            stores.add(connection.execute(select(state.c.value).where(is_store)).scalar_one())
            row = {"id": "f", "owner": "o.p", "purpose": "batch", "filename": "x", "bytes": 1, "created_at": 1}
            connection.execute(insert(files).values(**row, expires_at=2))
        database.migrate("0001")
        with database.begin() as connection:
            assert [connection.execute(select(each)).all() for each in tables] == before
    assert len(stores) == 2


def test_data_survives_an_upgrade_that_is_none(database: Database) -> None:
    fields = {"settings": "{}", "created_at": 1.0, "revision": 1}
    with database.begin() as connection:
        connection.execute(insert(organisations).values(name="o", **fields))
        connection.execute(insert(projects).values(name="o.p", organisation="o", **fields))
        connection.execute(insert(keys).values(id="k", role="member", project="o.p", name="n", **fields, **HIDDEN))
    database.upgrade()
    with database.begin() as connection:
        counts = [connection.execute(select(func.count()).select_from(each)).scalar_one() for each in (keys, projects)]
    assert counts == [1, 1]


def test_a_newer_program_has_used_it(database: Database) -> None:
    with database.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigurationError, match="tables of version 9999, which this version"):
        database.upgrade()


def test_gateways_that_begin_together_make_tables_once(database_url: str) -> None:
    found: list[Exception] = []

    def begin() -> None:
        opened = Database.open(database_url)
        try:
            opened.upgrade()
        except Exception as error:
            found.append(error)
        finally:
            opened.close()

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == []


def test_what_fails_in_a_transaction_is_not_there(database: Database) -> None:
    row = {"at": 1.0, "actor": "a", "action": "b", "subject": "c", "detail": "{}"}
    with pytest.raises(ZeroDivisionError), database.begin() as connection:
        connection.execute(insert(audit).values(**row))
        raise ZeroDivisionError
    with database.begin() as connection:
        assert connection.execute(select(func.count()).select_from(audit)).scalar_one() == 0


def test_it_is_closed_after_what_is_under_way(database_url: str) -> None:
    """As where a task is cancelled whose thread asks something."""
    opened, began, may_end = Database.open(database_url), threading.Event(), threading.Event()

    def ask() -> None:
        with opened.begin() as connection:
            began.set()
            may_end.wait()
            connection.execute(text("SELECT 1"))

    asking, closing = threading.Thread(target=ask), threading.Thread(target=opened.close)
    asking.start()
    began.wait()
    closing.start()
    # However long it takes, it does not end.
    closing.join(0.1)
    assert closing.is_alive()
    may_end.set()
    asking.join()
    closing.join()


def test_a_pooler_may_stand_between(pooled_url: str) -> None:
    """What one transaction sets is nobody else's, and each has its bounds."""
    opened = Database.open(pooled_url)
    opened.upgrade()
    for number in range(12):
        with opened.begin() as connection:
            assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "10s"
            assert connection.execute(text("SHOW lock_timeout")).scalar_one() == "10s"
            connection.execute(
                insert(ledger).values(**{**ENTRY, "id": f"e{number}"}, prompt=1, cached=0, output=2, cost=3)
            )
    with opened.begin() as connection:
        assert connection.execute(select(func.count()).select_from(ledger)).scalar_one() == 12
    opened.close()
