"""Addresses as people write them."""

import pytest

from penstock.bench.load.address import Address, parse_address
from penstock.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://127.0.0.1:8000", Address("127.0.0.1", 8000)),
        ("localhost:8000/", Address("localhost", 8000)),
        ("http://[::1]:80/v1", Address("::1", 80)),
        ("https://example.org", Address("example.org", 443, True)),
        ("https://example.org:8443/api/v1/", Address("example.org", 8443, True, "/api")),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(address.url) == address


@pytest.mark.parametrize(
    "text", ["", "ftp://x", "http://", "http://x:port", "http://x/v1?a=b", "http://a b", "http://u:p@x"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_address(text)
