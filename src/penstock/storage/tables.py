"""The tables of files and batches. A version that was released never changes; another one follows it."""

from penstock.storage.database import Migrations

MIGRATIONS: Migrations = (
    (
        # `sequence` is the order in which things were made. A number is never given twice.
        """CREATE TABLE files (
            sequence INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            purpose TEXT NOT NULL,
            filename TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            created_at INTEGER NOT NULL,
            expires_at INTEGER NOT NULL
        )""",
        "CREATE INDEX files_by_expiry ON files (expires_at)",
        # `record` is the batch as JSON; `status` is a copy of what it says, for queries. What lines have come to is
        # counted beside it, in the transaction that keeps their results.
        """CREATE TABLE batches (
            sequence INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            status TEXT NOT NULL,
            input_file_id TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            completed INTEGER NOT NULL DEFAULT 0,
            failed INTEGER NOT NULL DEFAULT 0,
            result_bytes INTEGER NOT NULL DEFAULT 0,
            record BLOB NOT NULL
        )""",
        "CREATE INDEX batches_by_status ON batches (status)",
        # Results of batches that have not ended; then they become files.
        """CREATE TABLE results (
            batch INTEGER NOT NULL REFERENCES batches (sequence) ON DELETE CASCADE,
            line INTEGER NOT NULL,
            ok INTEGER NOT NULL,
            output BLOB NOT NULL,
            PRIMARY KEY (batch, line)
        )""",
    ),
    (
        # Whose it is: the name of a tenant, or nothing where the server has no keys.
        "ALTER TABLE files ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE batches ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
        "CREATE INDEX files_by_owner ON files (owner, sequence)",
        "CREATE INDEX batches_by_owner ON batches (owner, sequence)",
    ),
)
