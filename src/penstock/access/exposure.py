"""Who may ask a server, and whether that goes with the address that it listens on."""

import ipaddress
import socket
from dataclasses import dataclass, field

from penstock.access.keys import Keyring
from penstock.core.config import Reason
from penstock.core.errors import ConfigurationError

# Of the environment, in which one key may stand.
VARIABLE = "PENSTOCK_API_KEY"
_SETTING = "api keys"
_NAMES_SHOWN = 8
_WHY_NONE = "none are given, so that only an address of this machine can be listened on"


@dataclass(frozen=True)
class Access:
    """Who may ask.

    Attributes:
        keys: those that may ask; without any, every client that reaches the server may.
        no_auth: whether that is meant, wherever the server listens.
        warnings: what the person who starts the server should know of it.
    """

    keys: Keyring = field(default_factory=Keyring)
    no_auth: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def reason(self) -> Reason:
        """The setting, with names only."""
        if self.keys:
            why = "every request but those to /health needs one; each key's files, batches and responses are its own"
            names, more = self.keys.names[:_NAMES_SHOWN], len(self.keys.names) - _NAMES_SHOWN
            return Reason(_SETTING, ", ".join(names) + (f" and {more} more" if more > 0 else ""), why)
        why = "as asked with --no-auth: every client that reaches the server may ask" if self.no_auth else _WHY_NONE
        return Reason(_SETTING, "none", why)

    def check_counted(self) -> None:
        """Raise ConfigurationError where keys have limits that a replica does not count."""
        for tenant in self.keys.tenants:
            bounds = [level.bounds for level in tenant.levels]
            if any(each.requests_per_minute is not None or each.tokens_per_minute is not None for each in bounds):
                raise ConfigurationError(
                    f"The API key {tenant.name!r} has requests_per_minute or tokens_per_minute, which are counted by "
                    "`penstock gateway` for all replicas: give it the key file, and a replica a key with for_others."
                )
            if tenant.answer_cache_seconds:
                raise ConfigurationError(
                    f"The API key {tenant.name!r} has answer_cache_seconds: `penstock gateway` keeps answers, a "
                    "replica does not; give the key file to the gateway."
                )

    def check_exposed(self, listener: socket.socket) -> None:
        """Raise ConfigurationError where other machines could reach a server without keys or --no-auth."""
        host = listener.getsockname()[0]
        if self.keys or self.no_auth or ipaddress.ip_address(host).is_loopback:
            return
        raise ConfigurationError(
            f"{host} can be reached from other machines, and no API key is required: give keys with --api-key-file "
            f"(`penstock key NAME` makes one) or {VARIABLE}, listen on 127.0.0.1, or say --no-auth."
        )
