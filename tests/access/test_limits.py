"""The limits of admission: what is chosen and why, and what cannot be."""

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.access.admission import QueueBounds
from penstock.access.limits import AdmissionLimits, AdmissionOptions, Capacity, resolve_admission
from penstock.core.errors import ConfigurationError

CAPACITY = Capacity(running=256, tokens=16_000)


def test_what_is_chosen_follows_from_what_can_run() -> None:
    limits, reasons = resolve_admission(AdmissionOptions(), CAPACITY)
    assert limits == AdmissionLimits(bounds=QueueBounds(requests=1024, tokens=64_000))
    assert [(reason.setting, reason.value) for reason in reasons] == [
        ("max queued requests", "1024"),
        ("max queued tokens", "64000"),
        ("max ttft", "none"),
        ("request timeout", "none"),
    ]
    assert all(reason.why for reason in reasons)
    few, _ = resolve_admission(AdmissionOptions(), Capacity(running=2, tokens=8_000))
    assert few.bounds == QueueBounds(requests=128, tokens=32_000)


def test_a_pool_that_is_estimated_is_told_to_be() -> None:
    limits, reasons = resolve_admission(AdmissionOptions(), replace(CAPACITY, estimated=True))
    assert limits.bounds.tokens == 64_000
    assert "is estimated to hold, until" in reasons[1].why
    assert "the KV pool holds" in resolve_admission(AdmissionOptions(), CAPACITY)[1][1].why


def test_what_is_asked_for_is_taken() -> None:
    asked = AdmissionOptions(max_queued_requests=1, max_queued_tokens=5, max_ttft=0.5, request_timeout=60.0)
    limits, reasons = resolve_admission(asked, CAPACITY)
    assert limits == AdmissionLimits(bounds=QueueBounds(requests=1, tokens=5, ttft=0.5), request_timeout=60.0)
    assert {reason.why for reason in reasons} == {"as asked"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_queued_requests", 0),
        ("max_queued_tokens", 2**63),
        ("max_ttft", 0.0),
        ("request_timeout", float("inf")),
        ("request_timeout", float("nan")),
    ],
)
def test_what_cannot_be_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^--{field.replace('_', '-')} is "):
        resolve_admission(AdmissionOptions(**{field: value}), CAPACITY)
