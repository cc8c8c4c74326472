"""What the operator says of a provider, and what cannot be."""

from decimal import Decimal
from typing import Any

import pytest

from penstock.core.errors import ConfigurationError
from penstock.providers.options import ProviderModel, ProviderOptions

MODEL = ProviderModel(model="m", input=Decimal(1), output=Decimal(2))


def options(**fields: Any) -> ProviderOptions:
    """Those of a provider, checked."""
    given = {"name": "p", "api": "openai", "key_variable": "KEY", "model": (MODEL,), **fields}
    return ProviderOptions(**given).check()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        (None, "max_completion_tokens"),
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("https://api.mistral.ai/v1", "max_tokens"),
        ("http://127.0.0.1:8000/v1", "max_tokens"),
    ],
)
def test_the_field_of_the_bound(fields: str | None, field: str) -> None:
    assert options(url=fields).bound_field == field
    assert options(url=fields, max_tokens_field="max_tokens").bound_field == "max_tokens"
    assert options(url=fields, max_tokens_field="max_completion_tokens").bound_field == "max_completion_tokens"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"url": "https://x.org/v 1"}, "no URL of a provider"),
        ({"url": "ftp://x.org/v1"}, "no URL of a provider"),
        ({"url": "x.org/v1"}, "no URL of a provider"),
        ({"url": "https:///v1"}, "no URL of a provider"),
        ({"url": "https://[x/v1"}, "no URL of a provider"),
        ({"url": "https://x.org/v1/chat/completions"}, "ends in /chat/completions"),
        ({"url": "https://x.org/v1/messages/"}, "ends in /messages"),
        ({"max_output_tokens": 10**7 + 1}, "max_output_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"model": (ProviderModel(model="m", at=" ", input=Decimal(1), output=Decimal(2)),)}, "at of the model 'm'"),
        ({"api": "anthropic", "max_tokens_field": "max_tokens"}, "max_tokens_field"),
        ({"api": "anthropic", "stream_usage": False}, "stream_usage"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        options(**fields)
    assert said in refused.value.message and refused.value.message.endswith(".")
