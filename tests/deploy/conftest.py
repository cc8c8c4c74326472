"""The command line, as tests of it run it."""

from cli.conftest import penstock_here

__all__ = ["penstock_here"]
