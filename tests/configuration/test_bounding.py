"""Which policies for contexts a model and a machine allow, and what holds where a request says nothing."""

from typing import Any

import pytest

from penstock.configuration.facts import MachineFacts, ModelFacts
from penstock.configuration.options import EngineOptions
from penstock.configuration.resolve import resolve
from penstock.core.config import EngineConfig, Reason
from penstock.core.devices import Gpu, GpuFacts
from penstock.core.errors import ConfigurationError
from penstock.core.kv import LayerKV
from penstock.core.kv_policy import POLICY_KINDS, WEIGHED, AskedPolicy, KVPolicy

WHOLE, WINDOW = LayerKV(8, 64), LayerKV(8, 64, window=128)
FACTS: dict[str, Any] = {
    "path": "/model",
    "stored_dtype": "bfloat16",
    "num_parameters": 500_000,
    "resident_parameters": 600_000,
    "body_parameters": 390_000,
    "head_parameters": 100_000,
    "max_position_embeddings": 4096,
}
GPU = Gpu(0, "NVIDIA H100", (9, 0), total_memory=80 << 30, free_memory=70 << 30)


def resolved(
    layers: tuple[LayerKV, ...] = (WHOLE, WHOLE), machine: dict[str, Any] | None = None, **given: Any
) -> tuple[EngineConfig, Reason]:
    facts = {name: given.pop(name) for name in ("positions",) if name in given}
    config, reasons = resolve(
        EngineOptions.of(model="/model", **given),
        ModelFacts(**FACTS, **facts, kv_layers=layers),
        MachineFacts(16 << 30, 2, **(machine or {})),
    )
    (reason,) = [each for each in reasons if each.setting == "kv policy"]
    return config, reason


def test_where_all_layers_see_everything_all_policies_are_possible() -> None:
    config, reason = resolved()
    assert config.scheduler.kv_policies.kinds == POLICY_KINDS and config.kv_policy is None
    assert reason.value == "full" and "requests can ask for window, h2o, scissorhands, snapkv" in reason.why


def test_layers_with_windows_go_with_no_other_window() -> None:
    config, reason = resolved((WHOLE, WINDOW))
    assert config.scheduler.kv_policies.kinds == WEIGHED and "layers have windows of their own" in reason.why


@pytest.mark.parametrize("positions", ["learned", "scaled", "none"])
def test_a_window_needs_positions_that_can_move(positions: str) -> None:
    config, reason = resolved(positions=positions)
    assert config.scheduler.kv_policies.kinds == WEIGHED
    assert "window" in config.scheduler.kv_policies.why_not and "requests can ask for h2o" in reason.why
    with pytest.raises(ConfigurationError, match="--kv-policy: window is not possible here: .*; there are h2o"):
        resolved(positions=positions, kv_policy="window:2048")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"layers": (WINDOW, WINDOW)}, "all layers of this model have windows"),
        ({"simulate": "h100"}, "simulated devices"),
        ({"machine": {"obstacle": "they were not built", "exact": False}}, "native kernels (they were not built)"),
    ],
)
def test_where_nothing_can_be_dropped_the_reason_is_told(given: dict[str, Any], why: str) -> None:
    config, reason = resolved(**given)
    assert config.scheduler.kv_policies.kinds == () and why in config.scheduler.kv_policies.why_not
    assert reason.value == "full" and why in reason.why
    with pytest.raises(ConfigurationError, match="--kv-policy: h2o is not possible here: .*; leave it out"):
        resolved(**given, kv_policy="h2o:2048")


def test_a_gpu_needs_no_kernels_of_the_processor() -> None:
    machine = {"gpus": GpuFacts((GPU,)), "gpu": GPU, "obstacle": "they were not built"}
    config, _ = resolved(machine=machine, device="cuda", speculative="off")
    assert config.device == "cuda:0" and config.scheduler.kv_policies.kinds == POLICY_KINDS


def test_whatever_drafts_leaves_them_alone() -> None:
    assert resolved(speculative="self")[0].scheduler.kv_policies.kinds == POLICY_KINDS
    assert resolved(speculative="off")[0].scheduler.kv_policies.kinds == POLICY_KINDS


def test_what_is_asked_for_holds_for_requests_that_say_nothing() -> None:
    config, reason = resolved(kv_policy="h2o:2048,sinks=64")
    assert config.kv_policy == AskedPolicy(policy=KVPolicy(kind="h2o", tokens=2048, sinks=64))
    assert reason.value == "h2o:2048,sinks=64,recent=128,protect=system"
    assert resolved(kv_policy="full")[0].kv_policy is None


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("h2o:64", "--kv-policy: tokens: 64 tokens cannot hold 16 sinks, 128 recent tokens"),
        ("h2o:8192", "--kv-policy: tokens: 8192 tokens are more than this server's context of 4096"),
        ("h2o", "is no policy"),
        (KVPolicy(kind="window", tokens=8), "--kv-policy: tokens: 8 tokens are less than a KV block"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_at_the_start(policy: object, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolved(kv_policy=policy)
    assert says in caught.value.message
