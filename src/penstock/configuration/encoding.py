"""What options mean for models that make vectors only; most keep no keys and values, and compute whole texts."""

from collections.abc import Iterator

from msgspec.structs import replace

from penstock.configuration.facts import ModelFacts
from penstock.configuration.options import EngineOptions
from penstock.configuration.sources import longest_source
from penstock.core.devices import Gpu
from penstock.core.errors import ConfigurationError


def encoding_options(options: EngineOptions, model: ModelFacts, gpu: Gpu | None) -> EngineOptions:
    """The options with which an encoder's configuration is made; those of any other model stay as they are.

    Raises ConfigurationError where one asks for what only models have that generate.
    """
    if not model.encodes:
        return options
    if gpu is not None:
        raise ConfigurationError(f"Encoders are not computed on {gpu.device} in this release; take --device cpu.")
    for option in _of_generation(options):
        raise ConfigurationError(f"{option} is of no use with an encoder, which generates nothing.")
    options = replace(options, speculation=replace(options.speculation, proposer="off"))
    if not model.whole:
        return options
    for option in _of_keeping(options):
        raise ConfigurationError(
            f"{option} is of no use with an encoder, which generates nothing and keeps no keys and values."
        )
    return replace(options, cache=replace(options.cache, enable_prefix_caching=False))


def least_step(options: EngineOptions, model: ModelFacts) -> int:
    """Positions for which a step must have room: a whole text of an encoder that keeps nothing, else a part of one."""
    if model.max_source is not None:
        return longest_source(options, model)
    return (options.batch.max_model_len or longest_text(model)) if model.encodes and model.whole else 1


def longest_text(model: ModelFacts) -> int:
    """Tokens of the longest text that an encoder takes unless it is asked to take more."""
    return min(model.usual_length or model.max_position_embeddings, model.max_position_embeddings)


def _of_generation(options: EngineOptions) -> Iterator[str]:
    """Those that were asked for and are of generation alone."""
    asked = {
        "--kv-policy": options.cache.kv_policy,
        "--static-batching": options.batch.static_batching,
        "--speculative": options.speculation.is_asked,
    }
    return (option for option, value in asked.items() if value)


def _of_keeping(options: EngineOptions) -> Iterator[str]:
    """Those that were asked for and are of keys and values, or of texts that several steps compute."""
    cache = options.cache
    asked = {
        "--kv-cache-memory": cache.kv_cache_memory,
        "--kv-cache-dtype": cache.kv_cache_dtype != "auto",
        "--swap-space": cache.swap_space,
        "--kv-host-memory": cache.kv_host_memory,
        "--kv-disk": cache.kv_disk,
        "--kv-store": cache.kv_store,
        "--long-prefill-token-threshold": options.batch.long_prefill_token_threshold,
    }
    return (option for option, value in asked.items() if value)
