"""What a plan makes of contexts that a policy bounds."""

import json
from pathlib import Path

import pytest

from penstock.core.errors import ConfigurationError
from penstock.planning.bounding import bounded, policy_for
from penstock.planning.deploying import deploy
from penstock.planning.hardware import machine_of
from penstock.planning.latency import Deployment
from penstock.planning.memory import memory_of

MODELS = json.loads((Path(__file__).parents[2] / "benchmarks" / "public_models.json").read_text())


def deployment(name: str = "Llama-3.1-70B") -> Deployment:
    return deploy(MODELS[name], machine_of("8xh100"), 8, kv_cache_dtype="bfloat16")


def test_no_more_is_held_or_read_than_a_policy_lets() -> None:
    whole = deployment()
    held = bounded(whole, policy_for("h2o:2048", whole.shape))
    assert held.cache_bytes(1000) == whole.cache_bytes(1000)
    assert held.cache_bytes(32_000) == pytest.approx(whole.cache_bytes(2048))
    assert memory_of(held, 32_000).max_concurrency > 10 * memory_of(whole, 32_000).max_concurrency


def test_without_a_policy_nothing_changes() -> None:
    whole = deployment()
    assert policy_for(None, whole.shape) is None and policy_for("full", whole.shape) is None
    assert bounded(whole, None) is whole


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("window:8", "less than a KV block"),
        ("window:64,sinks=64", "leave nothing"),
        ("of chance:64", "is not one of window, h2o"),
        ("snapkv:2048", "`penstock simulate` plays it"),
    ],
)
def test_what_cannot_be_is_refused(policy: str, says: str) -> None:
    whole = deployment()
    with pytest.raises(ConfigurationError, match=says):
        bounded(whole, policy_for(policy, whole.shape))


def test_layers_with_windows_of_their_own_leave_no_room_for_another() -> None:
    shape = deployment("gpt-oss-120b").shape
    with pytest.raises(ConfigurationError, match="some of this model's layers have windows of their own"):
        policy_for("window:2048", shape)
    assert policy_for("h2o:2048", shape) is not None
