"""Organisations, their projects and keys, kept in a database: who may ask, for what, how much, and what was used."""
