"""Where a server is."""

from urllib.parse import urlsplit

import msgspec

from penstock.core.errors import ConfigurationError


class Address(msgspec.Struct, frozen=True):
    """A server's address; `path` is what comes before /v1."""

    host: str
    port: int
    tls: bool = False
    path: str = ""

    @property
    def authority(self) -> str:
        """Host and port as they stand in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as it is written."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.path}"


def parse_address(text: str) -> Address:
    """The address that a URL says, with or without /v1 at its end. Raises ConfigurationError."""
    written = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(written)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    strange = not written.isascii() or any(character.isspace() for character in written)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or strange:
        raise ConfigurationError(f"{text!r} is no address of a server; write one such as http://127.0.0.1:8000.")
    if parts.username is not None:
        raise ConfigurationError("An address has no user and password here; give a key with --api-key - instead.")
    tls = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Address(parts.hostname, port if port is not None else (443 if tls else 80), tls, path)
