"""Replicas that compute prompts for others, and those that decode: `--role`, and what belongs to it."""

from collections.abc import Callable, Iterator
from typing import get_args

from msgspec.structs import replace

from penstock.configuration.facts import MachineFacts, ModelFacts
from penstock.configuration.listening import parse_host_and_port
from penstock.configuration.options import CacheOptions, EngineOptions
from penstock.configuration.ranks import check_ranks
from penstock.core.config import HandoverConfig
from penstock.core.devices import Gpu
from penstock.core.errors import ConfigurationError, InsufficientMemory
from penstock.core.handover import Role, Transport

# Where nothing else is asked for: this machine alone reaches what is offered there.
OFFER_AT = "127.0.0.1:0"
OFFER_BYTES = 1 << 30

Note = Callable[[str, object, str], None]


def check_role(options: EngineOptions, model: ModelFacts) -> Role:
    """The role that was asked for. Raises ConfigurationError for what does not go together with it."""
    cache = options.cache
    found: Role | None = next((each for each in get_args(Role) if each == cache.role), None)
    if found is None:
        raise ConfigurationError(f"--role {cache.role} is not one of {', '.join(get_args(Role))}.")
    if found != "prefill":
        for option, value in (("--kv-offer-at", cache.kv_offer_at), ("--kv-offer-memory", cache.kv_offer_memory)):
            if value is not None:
                raise ConfigurationError(f"{option} is of replicas with --role prefill alone; leave it out.")
    if found == "both" and cache.kv_transport is not None:
        raise ConfigurationError("--kv-transport is of replicas with --role prefill or decode alone; leave it out.")
    if found != "both":
        for option, why in _obstacles(options, model):
            raise ConfigurationError(f"--role {found} and {option} do not go together: {why}.")
    return found


def without_offers(options: EngineOptions, model: ModelFacts, machine: MachineFacts, gpu: Gpu | None) -> MachineFacts:
    """The machine with the memory that what is offered leaves.

    Raises ConfigurationError for what does not go together with the role that was asked for, InsufficientMemory.
    """
    size, role = _offer_bytes(options.cache), check_role(options, model)
    if role != "both" and gpu is not None and check_ranks(options).size > 1:
        raise ConfigurationError(
            f"--role {role} and --tensor-parallel-size do not go together on {gpu.device}: blocks are put "
            "together in the processor's memory; leave one of them out, or take --device cpu."
        )
    if role != "prefill" or gpu is not None:
        return machine
    if size >= machine.available_memory:
        raise InsufficientMemory(
            f"--kv-offer-memory {size / 2**30:.2f} GiB does not fit: {machine.available_memory / 2**30:.2f} GiB are "
            "available; lower it."
        )
    return replace(machine, available_memory=machine.available_memory - size)


def resolve_handover(cache: CacheOptions, slot_bytes: int, note: Note) -> HandoverConfig | None:
    """A replica's part, whose role was checked; None where it computes prompts and outputs. Raises ConfigurationError.

    `slot_bytes` is what a block of tokens takes.
    """
    whys = {
        "both": "it computes prompts, and decodes",
        "decode": "as asked: it pulls blocks of prompts from where a gateway says, and computes what is missing",
        "prefill": "as asked: it computes prompts, and offers their blocks to replicas that decode",
    }
    note("role", cache.role, whys[cache.role])
    if cache.role != "prefill":
        note("kv offer at", "nowhere", "only replicas that compute prompts for others offer blocks")
        note("kv offer memory", "none", "nothing is offered")
        if cache.role == "both":
            note("kv transport", "none", "no blocks go to or come from other replicas")
            return None
        return HandoverConfig("decode", transport=_transport(cache, note))
    host, port = parse_host_and_port("--kv-offer-at", cache.kv_offer_at or OFFER_AT)
    # 0.0.0.0 or ::, however it is written, is each machine's own addresses.
    if not host.strip("0.:"):
        raise ConfigurationError(
            f"--kv-offer-at {cache.kv_offer_at} is no place that replicas which decode reach: give an address of this "
            "machine, or a name of it."
        )
    why = "only this machine reaches it" if cache.kv_offer_at is None else "as asked"
    note("kv offer at", cache.kv_offer_at or OFFER_AT, why)
    size = _offer_bytes(cache)
    if size < 2 * slot_bytes:
        raise ConfigurationError(
            f"--kv-offer-memory has {size} bytes, and two blocks of this model take {2 * slot_bytes}; give it more."
        )
    note("kv offer memory", f"{size / 2**30:.2f} GiB", "by default" if cache.kv_offer_memory is None else "as asked")
    return HandoverConfig("prefill", host, port, size, _transport(cache, note))


def _transport(cache: CacheOptions, note: Note) -> Transport:
    """What blocks are pulled by. Raises ConfigurationError."""
    asked = cache.kv_transport
    found: Transport | None = next((each for each in get_args(Transport) if each == (asked or "tcp")), None)
    if found is None:
        raise ConfigurationError(f"--kv-transport {asked} is not one of {', '.join(get_args(Transport))}.")
    how = "as asked, and over TCP where a partner has another one"
    note("kv transport", found, "by default, or by memory in common on one machine" if asked is None else how)
    return found


def _offer_bytes(cache: CacheOptions) -> int:
    return OFFER_BYTES if cache.kv_offer_memory is None else cache.kv_offer_memory


def _obstacles(options: EngineOptions, model: ModelFacts) -> Iterator[tuple[str, str]]:
    """What does not go together with a role: the option, and why, with what would work."""
    device, cache = options.device, options.cache
    for name in ("pipeline", "context"):
        if getattr(device, f"{name}_parallel_size") != 1:
            yield f"--{name}-parallel-size", "blocks are put together of parts with some heads; leave one of them out"
    several = device.tensor_parallel_size != 1 or device.expert_parallel_size != 1
    if several and len({(layer.window, layer.source) for layer in model.kv_layers}) > 1:
        why = "the layers see different positions, and ranks hand over blocks of one kind; leave one of them out"
        yield "--tensor-parallel-size", why
    if not cache.enable_prefix_caching:
        yield "--no-enable-prefix-caching", "what is handed over are cached prefixes; leave it out"
    if device.simulate is not None:
        yield "--simulate", "simulated devices have no keys and values; leave it out"
    if model.encodes or model.max_source is not None:
        yield "this model", "only decoders hand prompts over; serve it without a role"
    for option, value in (("--kv-disk", cache.kv_disk), ("--kv-store", cache.kv_store)):
        if value is not None:
            yield option, "a replica with a role keeps no further copies in this release; leave one of them out"
    if cache.kv_policy is not None:
        yield "--kv-policy", "a context that gives up tokens cannot be handed over; leave it out"
