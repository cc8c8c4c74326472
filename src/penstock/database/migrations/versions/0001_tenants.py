"""Tenants, their keys, what was changed, and what was used. A version that was released never changes."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

# Integers that SQLite counts up by itself are its own kind only.
_Counted = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make all tables, in a database that has none of them."""
    op.create_table(
        "state",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
    op.execute(sa.text("INSERT INTO state (name, value) VALUES ('revision', 0)"))
    op.create_table(
        "organisations",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("settings", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("closed_at", sa.Float(53)),
        sa.Column("revision", sa.BigInteger, nullable=False, index=True),
    )
    op.create_table(
        "projects",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("organisation", sa.Text, sa.ForeignKey("organisations.name"), nullable=False, index=True),
        sa.Column("settings", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("closed_at", sa.Float(53)),
        sa.Column("revision", sa.BigInteger, nullable=False, index=True),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("project", sa.Text, sa.ForeignKey("projects.name"), index=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("shown", sa.Text, nullable=False),
        sa.Column("sha256", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("settings", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("expires_at", sa.Float(53)),
        sa.Column("revoked_at", sa.Float(53)),
        sa.Column("ends_streams", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False, index=True),
    )
    op.create_table(
        "audit",
        sa.Column("sequence", _Counted, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Float(53), nullable=False, index=True),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
    )
    op.create_table(
        "ledger",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("at", sa.Float(53), nullable=False, index=True),
        sa.Column("day", sa.Text, nullable=False),
        sa.Column("organisation", sa.Text, nullable=False),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("replica", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("prompt", sa.BigInteger, nullable=False),
        sa.Column("cached", sa.BigInteger, nullable=False),
        sa.Column("output", sa.BigInteger, nullable=False),
        sa.Column("is_batch", sa.Boolean, nullable=False),
        sa.Column("is_estimated", sa.Boolean, nullable=False),
        sa.Column("cost", sa.BigInteger),
    )
    for owner in ("organisation", "project", "key"):
        op.create_index(f"ledger_by_{owner}", "ledger", [owner, "day"])


def downgrade() -> None:
    """Remove all tables, with everything that is in them."""
    for table in ("ledger", "audit", "keys", "projects", "organisations", "state"):
        op.drop_table(table)
