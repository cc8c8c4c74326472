"""Where something listens, as options have it."""

import re

from penstock.core.errors import ConfigurationError

_PLACE = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%]+)\]|(?P<host>[^:\[\]/\s]+)):(?P<port>[0-9]{1,5})")
_MOST_PORT = 65535


def host_and_port_in(text: str) -> tuple[str, int] | None:
    """Host and port of a text such as 127.0.0.1:5557 or [::1]:5557; None where it is none."""
    found = _PLACE.fullmatch(text.removeprefix("tcp://"))
    if found is None or int(found["port"]) > _MOST_PORT:
        return None
    return found["six"] or found["host"], int(found["port"])


def parse_host_and_port(option: str, text: str) -> tuple[str, int]:
    """The same. Raises ConfigurationError where it is none."""
    found = host_and_port_in(text)
    if found is None:
        raise ConfigurationError(f"{option} {text!r} is no host and port; write them like 127.0.0.1:5557.")
    return found
