"""Fixtures of databases."""

from support.databases import database, database_url, pooled_url, postgres

__all__ = ["database", "database_url", "pooled_url", "postgres"]
