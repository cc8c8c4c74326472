"""Which requests are taken on, and for how long each may run: as asked, or chosen, with a reason for each value."""

import msgspec

from penstock.access.admission import QueueBounds
from penstock.core.checks import check_option_seconds
from penstock.core.config import Reason
from penstock.core.errors import ConfigurationError

# The most requests and tokens that wait, as a multiple of those that can run at a time. A longer queue takes longer to
# get through.
QUEUED_TIMES = 4
SHORTEST_QUEUE = 128


class AdmissionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options as the user gave them; None means: choose, and say why.

    Attributes:
        max_queued_requests: prompts that wait for their first output.
        max_queued_tokens: their tokens.
        max_ttft: seconds; requests whose first token is expected later are refused.
        request_timeout: seconds that any request has.
    """

    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    max_ttft: float | None = None
    request_timeout: float | None = None


class Capacity(msgspec.Struct, frozen=True):
    """What computes requests, as far as it decides how many may wait.

    Attributes:
        running: requests that are computed at a time.
        tokens: that its KV pool holds.
        estimated: whether it is yet to be measured how many these are.
    """

    running: int
    tokens: int
    estimated: bool = False


class AdmissionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The options with nothing left to choose; times that are None are unbounded."""

    bounds: QueueBounds
    request_timeout: float | None = None


def resolve_admission(options: AdmissionOptions, capacity: Capacity) -> tuple[AdmissionLimits, list[Reason]]:
    """The limits in front of what has this capacity, and why. Pure. Raises ConfigurationError."""
    _check_whole("--max-queued-requests", options.max_queued_requests)
    _check_whole("--max-queued-tokens", options.max_queued_tokens)
    check_option_seconds("--max-ttft", options.max_ttft)
    check_option_seconds("--request-timeout", options.request_timeout)
    reasons: list[Reason] = []
    requests, why = options.max_queued_requests, "as asked"
    if requests is None:
        requests = max(QUEUED_TIMES * capacity.running, SHORTEST_QUEUE)
        why = f"{QUEUED_TIMES} times what runs at a time, at least {SHORTEST_QUEUE}; more are refused with 503"
    reasons.append(Reason("max queued requests", str(requests), why))
    tokens, why = options.max_queued_tokens, "as asked"
    if tokens is None:
        tokens = max(QUEUED_TIMES * capacity.tokens, SHORTEST_QUEUE)
        holds = "is estimated to hold, until the engine has measured a step" if capacity.estimated else "holds"
        why = f"{QUEUED_TIMES} times what the KV pool {holds}; more are refused with 503"
    reasons.append(Reason("max queued tokens", str(tokens), why))
    reasons.append(
        _seconds("max ttft", options.max_ttft, "requests are refused only where the queue is full or memory is short")
    )
    reasons.append(_seconds("request timeout", options.request_timeout, "requests have the time that they ask for"))
    bounds = QueueBounds(requests=requests, tokens=tokens, ttft=options.max_ttft)
    return AdmissionLimits(bounds=bounds, request_timeout=options.request_timeout), reasons


def _seconds(setting: str, value: float | None, otherwise: str) -> Reason:
    return Reason(setting, "none", otherwise) if value is None else Reason(setting, f"{value:g} s", "as asked")


def _check_whole(option: str, value: int | None) -> None:
    if value is not None and not 1 <= value < 2**63:
        raise ConfigurationError(f"{option} is {value}; it must be from 1 to {2**63 - 1}.")
