"""The versions of a database's tables, which Alembic takes up and down."""

import logging

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from penstock.core.errors import ConfigurationError

BASE = "base"
# What it says of every step is nothing that operators of a gateway need.
logging.getLogger("alembic").setLevel(logging.WARNING)
# Of the lock that those who change tables take in turn: any number will do that no other program takes.
_LOCK = int.from_bytes(b"penstock", "big")


def upgrade(connection: Connection) -> None:
    """To the newest version. Raises ConfigurationError where a newer program's has been there."""
    scripts = _scripts(connection)
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    found = version_of(connection)
    if found is not None and found not in versions():
        raise ConfigurationError(
            f"The database has tables of version {found}, which this version of Penstock does not know; install one "
            "that is as new as that which used it last."
        )
    command.upgrade(scripts, "head")


def migrate(connection: Connection, version: str) -> None:
    """To a version, or to "base": no tables at all. Raises ConfigurationError for an unknown one."""
    known = versions()
    found = version_of(connection)
    if version not in (BASE, *known):
        raise ConfigurationError(f"There is no version {version!r} of tables; there are {', '.join((BASE, *known))}.")
    steps = (BASE, *known)
    newer = steps.index(version) > steps.index(found or BASE)
    (command.upgrade if newer else command.downgrade)(_scripts(connection), version)


def version_of(connection: Connection) -> str | None:
    """Which version a database has; None where there are no tables yet."""
    return MigrationContext.configure(connection).get_current_revision()


def versions() -> list[str]:
    """All of them, the oldest first."""
    found = ScriptDirectory.from_config(_config()).walk_revisions()
    return [each.revision for each in found][::-1]


def _scripts(connection: Connection) -> Config:
    config = _config()
    config.attributes["connection"] = connection
    return config


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "penstock.database:migrations")
    return config
