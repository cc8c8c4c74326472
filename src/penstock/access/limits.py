"""What the server takes on and for how long: as asked, or chosen, with a reason for each value."""

import math
import random
from typing import Any

import msgspec

from penstock.access.admission import AdmissionControl, QueueBounds
from penstock.core.checks import LONGEST_SECONDS
from penstock.core.config import BLOCK_SIZE, DEFAULT_MAX_NUM_SEQS, EngineConfig, Reason
from penstock.core.errors import ConfigurationError
from penstock.http.connections import MAX_CONNECTIONS
from penstock.http.stall import STALL_SECONDS

# The most requests and tokens that wait, as a multiple of those that can run at a time. A longer queue takes longer to
# get through.
QUEUED_TIMES = 4
SHORTEST_QUEUE = 128
# File descriptors that are counted for each connection: its own, and one for a file.
_DESCRIPTORS_EACH = 2
LEAST_CONNECTIONS = 32


class LimitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options as the user gave them; None means: choose, and say why.

    Attributes:
        max_queued_requests: prompts that wait for their first output.
        max_queued_tokens: their tokens.
        max_ttft: seconds; requests whose first token is expected later are refused.
        request_timeout: seconds that any request has.
        stall_timeout: seconds for which a connection stays open whose client takes nothing of an answer.
        max_connections: connections at a time.
    """

    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    max_ttft: float | None = None
    request_timeout: float | None = None
    stall_timeout: float | None = None
    max_connections: int | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The same with nothing left to choose; times that are None are unbounded."""

    bounds: QueueBounds
    request_timeout: float | None = None
    stall_timeout: float = STALL_SECONDS
    max_connections: int = MAX_CONNECTIONS


def resolve_limits(
    options: LimitOptions, config: EngineConfig, descriptors: int | None = None
) -> tuple[Limits, list[Reason]]:
    """The limits of a server with this engine. Pure. Raises ConfigurationError.

    `descriptors` is how many files the process may open, where that is limited.
    """
    for name in LimitOptions.__struct_fields__:
        if name != "max_connections":
            _check(f"--{name.replace('_', '-')}", getattr(options, name), whole=name.startswith("max_queued"))
    reasons: list[Reason] = []
    running = config.scheduler.max_num_seqs
    requests, why = options.max_queued_requests, "as asked"
    if requests is None:
        requests = max(QUEUED_TIMES * running, SHORTEST_QUEUE)
        why = f"{QUEUED_TIMES} times what runs at a time, at least {SHORTEST_QUEUE}; more are refused with 503"
    reasons.append(Reason("max queued requests", str(requests), why))
    tokens, why = options.max_queued_tokens, "as asked"
    if tokens is None:
        pool = config.cache.num_blocks * config.cache.spec.block_size // len(config.cache.spec.groups)
        tokens = max(QUEUED_TIMES * pool, SHORTEST_QUEUE)
        holds = "holds" if config.cache.wish is None else "is estimated to hold, until the engine has measured a step"
        why = f"{QUEUED_TIMES} times what the KV pool {holds}; more are refused with 503"
    reasons.append(Reason("max queued tokens", str(tokens), why))
    reasons.append(
        _seconds("max ttft", options.max_ttft, "requests are refused only where the queue is full or memory is short")
    )
    reasons.append(_seconds("request timeout", options.request_timeout, "requests have the time that they ask for"))
    stall, why = options.stall_timeout, "as asked"
    if stall is None:
        stall, why = STALL_SECONDS, "a client that takes nothing of an answer for so long is cut off"
    reasons.append(Reason("stall timeout", f"{stall:g} s", why))
    connections, why = _connections(options.max_connections, descriptors)
    reasons.append(Reason("max connections", str(connections), why))
    bounds = QueueBounds(requests=requests, tokens=tokens, ttft=options.max_ttft)
    return (
        Limits(
            bounds=bounds,
            request_timeout=options.request_timeout,
            stall_timeout=stall,
            max_connections=connections,
        ),
        reasons,
    )


def _connections(asked: int | None, descriptors: int | None) -> tuple[int, str]:
    most = 2**31 if descriptors is None else max(LEAST_CONNECTIONS, descriptors // _DESCRIPTORS_EACH)
    if asked is None:
        if most >= MAX_CONNECTIONS:
            return MAX_CONNECTIONS, "each takes memory; idle ones give way to new ones, more are refused with 503"
        return most, f"half of the {descriptors} files that the process may open (ulimit -n); more are refused with 503"
    if asked < LEAST_CONNECTIONS:
        raise ConfigurationError(f"--max-connections is {asked}; it must be at least {LEAST_CONNECTIONS}.")
    if asked > most:
        raise ConfigurationError(
            f"--max-connections is {asked}, but this process may open {descriptors} files (ulimit -n), two for each "
            f"connection; ask for at most {most}, or raise that limit."
        )
    return asked, "as asked"


def make_admission(bounds: QueueBounds, config: EngineConfig) -> AdmissionControl:
    """Admission to an engine of this configuration, with chance as it comes."""
    spec, chunk = config.cache.spec, config.scheduler.max_chunk or config.scheduler.max_num_batched_tokens
    return AdmissionControl(bounds, lambda tokens: spec.blocks_for(tokens, chunk), random.random)


def default_admission() -> AdmissionControl:
    """Admission as it is with the default options, to an engine with blocks of the usual size."""
    bounds = QueueBounds(requests=QUEUED_TIMES * DEFAULT_MAX_NUM_SEQS, tokens=2**20)
    return AdmissionControl(bounds, lambda tokens: -(-tokens // BLOCK_SIZE), random.random)


def _seconds(setting: str, value: float | None, otherwise: str) -> Reason:
    return Reason(setting, "none", otherwise) if value is None else Reason(setting, f"{value:g} s", "as asked")


def _check(option: str, value: Any, *, whole: bool) -> None:
    if value is None:
        return
    if whole and not 1 <= value < 2**63:
        raise ConfigurationError(f"{option} is {value}; it must be from 1 to {2**63 - 1}.")
    if not whole and not (math.isfinite(value) and 0.001 <= value <= LONGEST_SECONDS):
        raise ConfigurationError(f"{option} is {value}; it must be from 0.001 to {LONGEST_SECONDS:.0f} seconds.")
