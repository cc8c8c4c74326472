"""The tables as the newest version has them; `migrations/` makes them, and a test compares the two.

Those up to the ledger are of tenants, the others of what servers keep. Times are in seconds since 1970. `settings` and
`detail` are JSON. `revision` is that of `state` when the row was
changed last, so that a gateway finds what it does not know yet.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)

metadata = MetaData()
# Integers that SQLite counts up by itself are its own kind only.
_Counted = BigInteger().with_variant(Integer, "sqlite")


class _Plain(TypeDecorator[str]):
    """Texts of clients. None in PostgreSQL has the character NUL, which becomes one that stands for no character."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value if value is None else value.replace("\0", "\ufffd")


# `revision` is that of the tenants; `store` is drawn once, and tells what is kept here from what others keep.
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
    Column("sequence", _Counted, primary_key=True, autoincrement=True),
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

# `owner` is the name of a tenant, or nothing where the server has no keys; here and below. `sequence` is the order in
# which things were made. A number is never given twice.
files = Table(
    "files",
    metadata,
    Column("sequence", _Counted, primary_key=True, autoincrement=True),
    Column("id", _Plain, nullable=False, unique=True),
    Column("owner", _Plain, nullable=False),
    Column("purpose", _Plain, nullable=False),
    Column("filename", _Plain, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
    Index("files_by_owner", "owner", "sequence"),
    sqlite_autoincrement=True,
)

# The contents of files, where these are in no folder. They come before the file does: what is in `incoming` is none
# yet, and is given up at the time that is there.
file_parts = Table(
    "file_parts",
    metadata,
    Column("file", _Plain, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
)
incoming = Table(
    "incoming",
    metadata,
    Column("file", _Plain, primary_key=True),
    Column("until", Float(53), nullable=False, index=True),
)

# `record` is the batch as JSON; `status` is a copy of what it says, for queries. What lines have come to is counted
# beside it, in the transaction that keeps their results. `runner` says who may run it: servers of a model, or gateways;
# `holder` is the one that does, until `held_until` by the database's clock.
batches = Table(
    "batches",
    metadata,
    Column("sequence", _Counted, primary_key=True, autoincrement=True),
    Column("id", _Plain, nullable=False, unique=True),
    Column("owner", _Plain, nullable=False),
    Column("status", _Plain, nullable=False, index=True),
    Column("input_file_id", _Plain, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("completed", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("result_bytes", BigInteger, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("runner", _Plain, nullable=False),
    Column("holder", _Plain, nullable=False),
    Column("held_until", Float(53), nullable=False),
    Index("batches_by_owner", "owner", "sequence"),
    sqlite_autoincrement=True,
)

# Results of batches that have not ended; then they become files.
batch_results = Table(
    "batch_results",
    metadata,
    Column(
        "batch", _Counted, ForeignKey("batches.sequence", ondelete="CASCADE"), primary_key=True, autoincrement=False
    ),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("ok", Boolean, nullable=False),
    Column("output", LargeBinary, nullable=False),
)

# `used_at` is when it was made, or another response last went on from it. `input` and `response` are JSON.
responses = Table(
    "responses",
    metadata,
    Column("sequence", _Counted, primary_key=True, autoincrement=True),
    Column("id", _Plain, nullable=False, unique=True),
    Column("owner", _Plain, nullable=False),
    Column("previous", _Plain),
    Column("used_at", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("input", LargeBinary, nullable=False),
    Column("response", LargeBinary, nullable=False),
    Index("responses_by_use", "used_at", "sequence"),
    Index("responses_by_owner", "owner", "used_at", "sequence"),
    sqlite_autoincrement=True,
)

# In which responses an item is. The newest counts.
response_items = Table(
    "response_items",
    metadata,
    Column("owner", _Plain, primary_key=True),
    Column("id", _Plain, primary_key=True),
    Column(
        "response_sequence",
        _Counted,
        ForeignKey("responses.sequence", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
        index=True,
    ),
)

# How many responses an owner has, and their bytes, by the transactions that change them.
response_totals = Table(
    "response_totals",
    metadata,
    Column("owner", _Plain, primary_key=True),
    Column("responses", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
