"""What servers keep: files, batches and responses. A version that was released never changes."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

# Integers that SQLite counts up by itself are its own kind only.
_Counted = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Add the tables, and draw what tells this database from others."""
    store = sa.text("INSERT INTO state (name, value) VALUES ('store', :value)")
    op.execute(store.bindparams(value=secrets.randbits(62)))
    op.create_table(
        "files",
        sa.Column("sequence", _Counted, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False, index=True),
        sqlite_autoincrement=True,
    )
    op.create_index("files_by_owner", "files", ["owner", "sequence"])
    op.create_table(
        "file_parts",
        sa.Column("file", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "incoming",
        sa.Column("file", sa.Text, primary_key=True),
        sa.Column("until", sa.Float(53), nullable=False, index=True),
    )
    _add_batches()
    _add_responses()


def _add_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("sequence", _Counted, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False, index=True),
        sa.Column("input_file_id", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("completed", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("result_bytes", sa.BigInteger, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
        sa.Column("runner", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("held_until", sa.Float(53), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("batches_by_owner", "batches", ["owner", "sequence"])
    op.create_table(
        "batch_results",
        sa.Column(
            "batch",
            _Counted,
            sa.ForeignKey("batches.sequence", ondelete="CASCADE"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("ok", sa.Boolean, nullable=False),
        sa.Column("output", sa.LargeBinary, nullable=False),
    )


def _add_responses() -> None:
    op.create_table(
        "responses",
        sa.Column("sequence", _Counted, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("previous", sa.Text),
        sa.Column("used_at", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("input", sa.LargeBinary, nullable=False),
        sa.Column("response", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("responses_by_use", "responses", ["used_at", "sequence"])
    op.create_index("responses_by_owner", "responses", ["owner", "used_at", "sequence"])
    op.create_table(
        "response_items",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column(
            "response_sequence",
            _Counted,
            sa.ForeignKey("responses.sequence", ondelete="CASCADE"),
            primary_key=True,
            autoincrement=False,
            index=True,
        ),
    )
    op.create_table(
        "response_totals",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("responses", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Remove the tables, with everything that is in them."""
    for table in ("response_totals", "response_items", "responses", "batch_results", "batches"):
        op.drop_table(table)
    for table in ("incoming", "file_parts", "files"):
        op.drop_table(table)
    op.execute(sa.text("DELETE FROM state WHERE name = 'store'"))
