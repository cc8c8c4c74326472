"""Where something listens, as options have it."""

import re

from penstock.core.errors import ConfigurationError

_PLACE = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%]+)\]|(?P<host>[^:\[\]/\s]+)):(?P<port>[0-9]{1,5})")
_MOST_PORT = 65535


def parse_host_and_port(option: str, text: str) -> tuple[str, int]:
    """Host and port of a text such as 127.0.0.1:5557 or [::1]:5557. Raises ConfigurationError."""
    found = _PLACE.fullmatch(text.removeprefix("tcp://"))
    if found is None or int(found["port"]) > _MOST_PORT:
        raise ConfigurationError(f"{option} {text!r} is no host and port; write them like 127.0.0.1:5557.")
    return found["six"] or found["host"], int(found["port"])
