"""The limits of connections: what is chosen and why, and what cannot be."""

from typing import Any

import pytest

from penstock.core.errors import ConfigurationError
from penstock.http.limits import ConnectionLimits, ConnectionOptions, resolve_connections


def test_what_is_chosen_has_its_reasons() -> None:
    limits, reasons = resolve_connections(ConnectionOptions())
    assert limits == ConnectionLimits(stall_timeout=30.0, max_connections=4096)
    assert [(reason.setting, reason.value) for reason in reasons] == [
        ("stall timeout", "30 s"),
        ("max connections", "4096"),
    ]
    assert all(reason.why for reason in reasons)


def test_what_is_asked_for_is_taken() -> None:
    limits, reasons = resolve_connections(ConnectionOptions(stall_timeout=2.0, max_connections=100), descriptors=200)
    assert limits == ConnectionLimits(stall_timeout=2.0, max_connections=100)
    assert {reason.why for reason in reasons} == {"as asked"}


def test_connections_follow_from_the_files_that_may_be_open() -> None:
    for descriptors, most in ((None, 4096), (1 << 20, 4096), (1024, 512), (10, 32)):
        limits, reasons = resolve_connections(ConnectionOptions(), descriptors)
        assert limits.max_connections == most and reasons[-1].setting == "max connections"
    with pytest.raises(ConfigurationError, match="ask for at most 512"):
        resolve_connections(ConnectionOptions(max_connections=513), 1024)


@pytest.mark.parametrize(("field", "value"), [("stall_timeout", -1.0), ("max_connections", 31)])
def test_what_cannot_be_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^--{field.replace('_', '-')} is "):
        resolve_connections(ConnectionOptions(**{field: value}))
