"""A database of several gateways, or of one: SQLAlchemy over PostgreSQL or SQLite, and its versions by Alembic."""
