"""What options mean for an encoder–decoder: each request has a source, which is encoded whole in one step."""

from collections.abc import Iterator

from msgspec.structs import replace

from penstock.configuration.facts import ModelFacts
from penstock.configuration.options import EngineOptions
from penstock.core.devices import Gpu
from penstock.core.errors import ConfigurationError


def sourced_options(options: EngineOptions, model: ModelFacts, gpu: Gpu | None) -> EngineOptions:
    """The options with which an encoder–decoder's configuration is made; those of any other model stay as they are.

    Raises ConfigurationError where one asks for what such models cannot do.
    """
    if model.max_source is None:
        return options
    if gpu is not None:
        raise ConfigurationError(
            f"Encoder–decoders are not computed on {gpu.device} in this release; take --device cpu."
        )
    for option in _refused(options):
        raise ConfigurationError(f"{option} is not possible with an encoder–decoder in this release; leave it out.")
    return replace(options, speculation=replace(options.speculation, proposer="off"))


def longest_source(options: EngineOptions, model: ModelFacts) -> int:
    """Tokens of the longest source: what the encoder was made for, unless contexts are to be shorter."""
    most = model.max_source or 0
    return min(options.batch.max_model_len or most, most)


def _refused(options: EngineOptions) -> Iterator[str]:
    """Those that were asked for and are not possible."""
    cache = options.cache
    asked = {
        "--kv-host-memory": cache.kv_host_memory,
        "--kv-disk": cache.kv_disk,
        "--kv-store": cache.kv_store,
        "--kv-policy": cache.kv_policy,
        "--simulate": options.device.simulate,
        "--speculative": options.speculation.is_asked,
    }
    return (option for option, value in asked.items() if value)
