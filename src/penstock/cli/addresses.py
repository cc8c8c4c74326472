"""Addresses as the console shows them."""

from rich.markup import escape


def address_markup(host: str, port: int, encrypted: bool = False) -> str:
    """The API's URL for rich, to which the brackets around an IPv6 address would mean markup."""
    scheme = "https" if encrypted else "http"
    return escape(f"{scheme}://[{host}]:{port}/v1" if ":" in host else f"{scheme}://{host}:{port}/v1")
