"""The tables as the newest version has them; `migrations/` makes them, and a test compares the two.

Times are in seconds since 1970. `settings` and `detail` are JSON. `revision` is that of `state` when the row was
changed last, so that a gateway finds what it does not know yet.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

metadata = MetaData()

state = Table(
    "state",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

organisations = Table(
    "organisations",
    metadata,
    Column("name", Text, primary_key=True),
    Column("settings", Text, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("closed_at", Float(53)),
    Column("revision", BigInteger, nullable=False, index=True),
)

# A project's name begins with that of its organisation and a dot.
projects = Table(
    "projects",
    metadata,
    Column("name", Text, primary_key=True),
    Column("organisation", Text, ForeignKey("organisations.name"), nullable=False, index=True),
    Column("settings", Text, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("closed_at", Float(53)),
    Column("revision", BigInteger, nullable=False, index=True),
)

# `shown` is the beginning of a key. Those who administer have keys without a project.
keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("project", Text, ForeignKey("projects.name"), index=True),
    Column("name", Text, nullable=False),
    Column("shown", Text, nullable=False),
    Column("sha256", LargeBinary, nullable=False, unique=True),
    Column("settings", Text, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("expires_at", Float(53)),
    Column("revoked_at", Float(53)),
    Column("ends_streams", Boolean, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
)

audit = Table(
    "audit",
    metadata,
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at", Float(53), nullable=False, index=True),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("detail", Text, nullable=False),
)

# `day` is the date in UTC, as 2026-01-31; `cost` is in trillionths, and NULL where the model has no price.
ledger = Table(
    "ledger",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", Float(53), nullable=False, index=True),
    Column("day", Text, nullable=False),
    Column("organisation", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("replica", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("prompt", BigInteger, nullable=False),
    Column("cached", BigInteger, nullable=False),
    Column("output", BigInteger, nullable=False),
    Column("is_batch", Boolean, nullable=False),
    Column("is_estimated", Boolean, nullable=False),
    Column("cost", BigInteger),
    Index("ledger_by_organisation", "organisation", "day"),
    Index("ledger_by_project", "project", "day"),
    Index("ledger_by_key", "key", "day"),
)
