"""The server's limits: what is chosen and why, and what cannot be."""

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.access.admission import QueueBounds
from penstock.access.limits import LimitOptions, Limits, resolve_limits
from penstock.core.config import CacheConfig, EngineConfig, ModelConfig, PoolWish, SchedulerConfig
from penstock.core.errors import ConfigurationError
from penstock.core.kv import GroupSpec, KVSpec, Plane


def config(max_num_seqs: int = 256, num_blocks: int = 1000, groups: int = 1) -> EngineConfig:
    spec = KVSpec(16, (Plane("key", (1, 1), "float32"),), tuple(GroupSpec((index,)) for index in range(groups)), 1)
    return EngineConfig(
        model=ModelConfig("m", "m", "float32"),
        cache=CacheConfig(spec, num_blocks),
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs),
        threads=1,
    )


def test_what_is_chosen_follows_from_what_can_run() -> None:
    limits, reasons = resolve_limits(LimitOptions(), config())
    assert limits == Limits(bounds=QueueBounds(requests=1024, tokens=64_000))
    assert [(reason.setting, reason.value) for reason in reasons] == [
        ("max queued requests", "1024"),
        ("max queued tokens", "64000"),
        ("max ttft", "none"),
        ("request timeout", "none"),
        ("stall timeout", "30 s"),
        ("max connections", "4096"),
    ]
    assert all(reason.why for reason in reasons)
    few, _ = resolve_limits(LimitOptions(), config(max_num_seqs=2, groups=2))
    assert few.bounds == QueueBounds(requests=128, tokens=32_000)


def test_a_pool_that_is_estimated_is_told_to_be() -> None:
    measured = config()
    cache = replace(measured.cache, wish=PoolWish(None, 4096, 4096))
    limits, reasons = resolve_limits(LimitOptions(), replace(measured, cache=cache))
    assert limits.bounds.tokens == 64_000
    assert "is estimated to hold, until" in reasons[1].why
    assert "the KV pool holds" in resolve_limits(LimitOptions(), measured)[1][1].why


def test_what_is_asked_for_is_taken() -> None:
    asked = LimitOptions(
        max_queued_requests=1,
        max_queued_tokens=5,
        max_ttft=0.5,
        request_timeout=60.0,
        stall_timeout=2.0,
        max_connections=100,
    )
    limits, reasons = resolve_limits(asked, config(), descriptors=200)
    bounds = QueueBounds(requests=1, tokens=5, ttft=0.5)
    assert limits == Limits(bounds=bounds, request_timeout=60.0, stall_timeout=2.0, max_connections=100)
    assert {reason.why for reason in reasons} == {"as asked"}


def test_connections_follow_from_the_files_that_may_be_open() -> None:
    for descriptors, most in ((None, 4096), (1 << 20, 4096), (1024, 512), (10, 32)):
        limits, reasons = resolve_limits(LimitOptions(), config(), descriptors)
        assert limits.max_connections == most and reasons[-1].setting == "max connections"
    with pytest.raises(ConfigurationError, match="ask for at most 512"):
        resolve_limits(LimitOptions(max_connections=513), config(), 1024)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_queued_requests", 0),
        ("max_queued_tokens", 2**63),
        ("max_ttft", 0.0),
        ("request_timeout", float("inf")),
        ("request_timeout", float("nan")),
        ("stall_timeout", -1.0),
        ("max_connections", 31),
    ],
)
def test_what_cannot_be_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^--{field.replace('_', '-')} is "):
        resolve_limits(LimitOptions(**{field: value}), config())
