"""Closes the clients that a library makes for itself and leaves open."""

import contextlib
from collections.abc import Iterator
from typing import Any

import openai
import pytest


@contextlib.contextmanager
def closing_clients() -> Iterator[None]:
    """Close OpenAI's clients that are made in the block, at its end."""
    begin = openai.OpenAI.__init__

    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as open_:

        def noted(client: openai.OpenAI, *arguments: Any, **named: Any) -> None:
            begin(client, *arguments, **named)
            open_.callback(client.close)

        patch.setattr(openai.OpenAI, "__init__", noted)
        yield
