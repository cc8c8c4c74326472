"""Puts an engine together from its rooms: for the command line and for `penstock.llm` only."""
