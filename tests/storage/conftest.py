"""The tests of this folder ask a server over HTTP whose engine is scripted."""

from support.databases import database_url, postgres
from support.served import scripted_server, served, tokenizer

__all__ = ["database_url", "postgres", "scripted_server", "served", "tokenizer"]
