"""How many connections a server has and how long a client may hold one: as asked, or chosen, with a reason for each."""

import msgspec

from penstock.core.checks import check_option_seconds
from penstock.core.config import Reason
from penstock.core.errors import ConfigurationError
from penstock.http.connections import MAX_CONNECTIONS
from penstock.http.stall import STALL_SECONDS

# File descriptors that are counted for each connection: its own, and one for a file.
_DESCRIPTORS_EACH = 2
LEAST_CONNECTIONS = 32


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options as the user gave them; None means: choose, and say why.

    Attributes:
        stall_timeout: seconds for which a connection stays open whose client takes nothing of an answer.
        max_connections: connections at a time.
    """

    stall_timeout: float | None = None
    max_connections: int | None = None


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The same with nothing left to choose."""

    stall_timeout: float = STALL_SECONDS
    max_connections: int = MAX_CONNECTIONS


def resolve_connections(
    options: ConnectionOptions, descriptors: int | None = None
) -> tuple[ConnectionLimits, list[Reason]]:
    """The limits, and why. Pure. Raises ConfigurationError.

    `descriptors` is how many files the process may open, where that is limited.
    """
    check_option_seconds("--stall-timeout", options.stall_timeout)
    stall, why = options.stall_timeout, "as asked"
    if stall is None:
        stall, why = STALL_SECONDS, "a client that takes nothing of an answer for so long is cut off"
    connections, why_connections = _connections(options.max_connections, descriptors)
    reasons = [
        Reason("stall timeout", f"{stall:g} s", why),
        Reason("max connections", str(connections), why_connections),
    ]
    return ConnectionLimits(stall_timeout=stall, max_connections=connections), reasons


def _connections(asked: int | None, descriptors: int | None) -> tuple[int, str]:
    most = 2**31 if descriptors is None else max(LEAST_CONNECTIONS, descriptors // _DESCRIPTORS_EACH)
    if asked is None:
        if most >= MAX_CONNECTIONS:
            return MAX_CONNECTIONS, "each takes memory; idle ones give way to new ones, more are refused with 503"
        return most, f"half of the {descriptors} files that the process may open (ulimit -n); more are refused with 503"
    if asked < LEAST_CONNECTIONS:
        raise ConfigurationError(f"--max-connections is {asked}; it must be at least {LEAST_CONNECTIONS}.")
    if asked > most:
        raise ConfigurationError(
            f"--max-connections is {asked}, but this process may open {descriptors} files (ulimit -n), two for each "
            f"connection; ask for at most {most}, or raise that limit."
        )
    return asked, "as asked"
