"""Closes the clients that LiteLLM makes for itself and leaves open."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import openai
import pytest


@contextlib.contextmanager
def closing_clients() -> Iterator[None]:
    """Close those that are made in the block, at its end, and have the library forget them."""
    # Its import takes seconds.
    import litellm
    from litellm.llms.custom_httpx.http_handler import HTTPHandler

    kinds, kept = (openai.OpenAI, HTTPHandler), litellm.in_memory_llm_clients_cache.cache_dict

    def forget() -> None:
        for key in [key for key, client in kept.items() if isinstance(client, kinds)]:
            del kept[key]

    with contextlib.ExitStack() as open_, pytest.MonkeyPatch.context() as patch:
        open_.callback(forget)
        for kind in kinds:

            def noted(client: Any, *arguments: Any, begin: Any, **named: Any) -> None:
                begin(client, *arguments, **named)
                open_.callback(client.close)

            patch.setattr(kind, "__init__", functools.partialmethod(noted, begin=kind.__init__))
        yield
