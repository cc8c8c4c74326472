"""The tests of this folder ask a server over HTTP whose engine is scripted."""

from support.served import scripted_server, served, tokenizer

__all__ = ["scripted_server", "served", "tokenizer"]
