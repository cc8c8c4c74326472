"""Roles: what they resolve to, and what does not go together with them."""

from typing import Any

import msgspec
import pytest

from penstock.configuration.facts import MachineFacts, ModelFacts
from penstock.configuration.handover import OFFER_BYTES, resolve_handover, without_offers
from penstock.configuration.options import CacheOptions, EngineOptions
from penstock.core.config import HandoverConfig
from penstock.core.devices import Gpu
from penstock.core.errors import ConfigurationError, InsufficientMemory, PenstockError
from penstock.core.kv import LayerKV

MACHINE = MachineFacts(1 << 34, 4, api_beside=False)
MODEL = ModelFacts("/model", "bfloat16", 1000, 1000, 900, 100, 2048, (LayerKV(2, 16),))


def resolved(**asked: Any) -> HandoverConfig | None:
    return resolve_handover(CacheOptions(**asked), 1 << 16, lambda *_note: None)


def test_each_role_has_what_it_needs() -> None:
    assert resolved() is None
    assert resolved(role="decode") == HandoverConfig("decode")
    assert resolved(role="prefill") == HandoverConfig("prefill", "127.0.0.1", 0, OFFER_BYTES)
    asked: dict[str, Any] = {"kv_offer_at": "[::1]:7000", "kv_offer_memory": 1 << 20}
    assert resolved(role="prefill", **asked) == HandoverConfig("prefill", "::1", 7000, 1 << 20)
    assert resolved(role="decode", kv_transport="nixl") == HandoverConfig("decode", transport="nixl")
    asked = {"kv_transport": "mooncake"}
    assert resolved(role="prefill", **asked) == HandoverConfig("prefill", "127.0.0.1", 0, OFFER_BYTES, "mooncake")
    with pytest.raises(ConfigurationError, match="--kv-transport rdma is not one of tcp, nixl, mooncake"):
        resolved(role="decode", kv_transport="rdma")


def test_what_is_offered_is_memory_that_the_pool_has_not() -> None:
    options = EngineOptions.of("m", role="prefill", kv_offer_memory=3 << 20)
    assert without_offers(options, MODEL, MACHINE, None).available_memory == MACHINE.available_memory - (3 << 20)
    assert without_offers(EngineOptions.of("m", role="decode"), MODEL, MACHINE, None) == MACHINE
    with pytest.raises(InsufficientMemory, match="--kv-offer-memory .* does not fit"):
        without_offers(options, MODEL, msgspec.structs.replace(MACHINE, available_memory=1 << 20), None)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            {"role": "both", "kv_offer_at": "a:1"},
            "--kv-offer-at is of replicas with --role prefill alone; leave it out.",
        ),
        ({"role": "decode", "kv_offer_memory": 1}, "--kv-offer-memory is of replicas with --role prefill alone"),
        ({"kv_transport": "nixl"}, "--kv-transport is of replicas with --role prefill or decode alone; leave it out."),
        ({"role": "first"}, "--role first is not one of both, prefill, decode."),
        ({"role": "decode", "pipeline_parallel_size": 2}, "--role decode and --pipeline-parallel-size do not go"),
        (
            {"role": "decode", "context_parallel_size": 2},
            "--role decode and --context-parallel-size do not go together",
        ),
        ({"role": "decode", "enable_prefix_caching": False}, "and --no-enable-prefix-caching do not go together"),
        ({"role": "decode", "kv_disk": "/x"}, "--role decode and --kv-disk do not go together"),
        ({"role": "decode", "kv_store": "file:///x"}, "--role decode and --kv-store do not go together"),
        ({"role": "decode", "kv_policy": "h2o:2048"}, "--role decode and --kv-policy do not go together"),
        ({"role": "decode", "simulate": "h100"}, "--role decode and --simulate do not go together"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as found:
        without_offers(EngineOptions.of("m", **asked), MODEL, MACHINE, None)
    assert sentence in found.value.message


def test_ranks_hand_over_blocks_of_one_kind() -> None:
    options = EngineOptions.of("m", role="decode", tensor_parallel_size=2)
    assert without_offers(options, MODEL, MACHINE, None) == MACHINE
    with pytest.raises(ConfigurationError, match="do not go together on cuda:0: .* take --device cpu"):
        without_offers(options, MODEL, MACHINE, Gpu(0, "a GPU", (9, 0), 1 << 30, 1 << 30))
    mixed = msgspec.structs.replace(MODEL, kv_layers=(LayerKV(2, 16), LayerKV(2, 16, window=64)))
    with pytest.raises(ConfigurationError, match="--role decode and --tensor-parallel-size do not go together"):
        without_offers(options, mixed, MACHINE, None)


@pytest.mark.parametrize("asked", [{"kv_offer_at": "nowhere"}, {"kv_offer_memory": 100}])
def test_places_and_sizes_that_cannot_be_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(PenstockError, match="--kv-offer"):
        resolved(role="prefill", **asked)


@pytest.mark.parametrize("place", ["0.0.0.0:7000", "0:7000", "[::]:7000", "[0::0]:7000"])
def test_a_place_has_to_be_one_that_others_reach(place: str) -> None:
    with pytest.raises(ConfigurationError, match="give an address of this machine, or a name of it"):
        resolved(role="prefill", kv_offer_at=place)
    assert resolved(role="prefill", kv_offer_at="prompts-1:7000") is not None


@pytest.mark.parametrize("facts", [{"encodes": True}, {"max_source": 100}])
def test_only_decoders_have_roles(facts: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="only decoders hand prompts over"):
        without_offers(EngineOptions.of("m", role="decode"), msgspec.structs.replace(MODEL, **facts), MACHINE, None)
