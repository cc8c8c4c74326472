"""What an explanation says: types of what `/v1/requests/{id}/explain` answers."""

from typing import Literal

import msgspec

from penstock.core.kv_policy import PolicyKind
from penstock.observability.metrics import Endpoint, Miss, Outcome

PhaseName = Literal["receive", "prepare", "grammar", "find", "queue", "fetch", "prefill", "decode", "deliver"]
State = Literal[
    "receiving", "preparing", "compiling", "waiting", "fetching", "prefilling", "decoding", "delivering", "ended"
]
PartName = Literal["tokenizer_wait", "tokenise", "fetch", "chunk", "preempted", "restart", "stall"]
CauseCode = Literal[
    "busy_server",
    "slow_upload",
    "tokenizer_busy",
    "tokenisation",
    "grammar_compile",
    "queue_rows",
    "queue_pace",
    "queue_memory",
    "queue_share",
    "queue_place",
    "queue_prefix",
    "queue_scores",
    "queue_background",
    "kv_fetch",
    "neighbour_prefill",
    "cold_prefix",
    "changed_prefix",
    "evicted_prefix",
    "long_prompt",
    "preemption",
    "engine_restart",
    "cpu_contention",
    "long_context",
    "decode",
    "slow_reader",
    "other",
]


class Part(msgspec.Struct, frozen=True):
    """Something that happened within a phase; `start` is in seconds since the request's arrival."""

    name: PartName
    start: float
    seconds: float
    detail: str


class Phase(msgspec.Struct, frozen=True):
    """A stretch of the request's time. Phases follow one another without gaps, from its arrival to its end."""

    name: PhaseName
    start: float
    seconds: float
    detail: str
    parts: list[Part]


class Token(msgspec.Struct, frozen=True):
    """A token's id, and its text where the server has a tokenizer."""

    id: int
    text: str | None


class TierAccount(msgspec.Struct, frozen=True):
    """What a tier had of the prompt, beyond what faster tiers had.

    Attributes:
        tier: the pool, or where else KV blocks are kept.
        tokens, bytes: what was taken from there.
        seconds: how long the request waited for it; None where it had not to, or has not got it yet.
        left: tokens that were there and were not taken; `why_left` says why.
        read_seconds, compute_seconds: how long it was expected to take to read, and to compute, what was there; None
            where that had not been measured.
    """

    tier: str
    tokens: int
    bytes: int
    seconds: float | None
    left: int
    why_left: str | None
    read_seconds: float | None
    compute_seconds: float | None


class PrefixAccount(msgspec.Struct, frozen=True):
    """What the prefix cache had of the prompt.

    Attributes:
        looked_up: tokens that could have been there; `found`: those that were.
        missing: why not more; None where all were.
        position: of the first token that is not as what was cached for the same tenant.
        asked, cached: that token, and the one that was cached in its place.
        evicted_seconds: how long before the request's turn it was evicted.
        tiers: where it was found, the fastest first; none where there is only the pool.
    """

    looked_up: int
    found: int
    missing: str | None
    position: int | None
    asked: Token | None
    cached: Token | None
    evicted_seconds: float | None
    tiers: list[TierAccount] = []


class DecodeAccount(msgspec.Struct, frozen=True):
    """How tokens came after the first.

    Attributes:
        tokens: after the first.
        seconds: from the first to the last.
        tokens_per_second: of this request.
        steps: of the engine in that time, `prefill_steps` of them with prompts; `step_seconds`: of one without any.
        mean_batch: sequences in a step, on average.
        bytes_per_second: what the steps must have moved through memory at least; None where that is not known.
        memory_share: of what this machine's memory was measured to move; None where that is not known.
        drafted_tokens, accepted_tokens: that were drafted for the request, and those of them that were right.
        searched_tokens: of all beams, which its outputs were found among; 0 without beam search.
    """

    tokens: int
    seconds: float
    tokens_per_second: float
    steps: int
    prefill_steps: int
    step_seconds: float | None
    mean_batch: float | None
    bytes_per_second: float | None
    memory_share: float | None
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    searched_tokens: int = 0


class ContextAccount(msgspec.Struct, frozen=True):
    """How the contexts of all prompts were bounded.

    Attributes:
        type, tokens: of the policy: its kind, and how many tokens it lets a context hold.
        dropped_tokens: from all contexts.
        exact: whether none were, so that the answer is what it is without a policy.
    """

    type: PolicyKind
    tokens: int
    dropped_tokens: int
    exact: bool


class Cause(msgspec.Struct, frozen=True):
    """Something that took time.

    Attributes:
        code: which.
        seconds: by how much sooner the request would have ended without it.
        share: of the request's time.
        setting: the server's option, or the request's field, that would change it; None where there is none.
    """

    code: CauseCode
    seconds: float
    share: float
    setting: str | None


class Verdict(msgspec.Struct, frozen=True):
    """The largest cause, in one sentence too."""

    cause: CauseCode
    seconds: float
    setting: str | None
    sentence: str


class Failure(msgspec.Struct, frozen=True):
    """The error with which a request ended."""

    code: str | None
    message: str | None


class Explanation(msgspec.Struct, frozen=True):
    """Where a request's time went. Seconds are since its arrival; all causes together are all of its time.

    Attributes:
        id: of the request; `client_id` is the one that its client gave it, `response_id` that of its response.
        tenant: whose it is; told to the operator only.
        model: that it was for.
        created: its arrival, in Unix time.
        state: what is done with it now.
        waits_for: what keeps it waiting now; None where it does not wait.
        outcome, status, error: how it has ended; None while it runs.
        missed: the service levels that it missed.
        ignored: names of the request's fields that had no effect.
        prompts: how many it has; the timeline is that of number `prompt`, which was the last to be finished.
        prompt_text: where the operator has prompts kept.
        context: how it was bounded; None where it was held whole.
        causes: the largest first.
    """

    object: Literal["request.explanation"]
    id: str
    client_id: str | None
    response_id: str | None
    tenant: str | None
    endpoint: Endpoint
    created: float
    state: State
    waits_for: str | None
    outcome: Outcome | None
    status: int | None
    error: Failure | None
    seconds: float
    queue_seconds: float | None
    time_to_first_token: float | None
    missed: list[Miss]
    ignored: list[str]
    prompts: int
    prompt: int
    prompt_tokens: int
    output_tokens: int
    prompt_text: str | None
    timeline: list[Phase]
    prefix: PrefixAccount | None
    decode: DecodeAccount | None
    context: ContextAccount | None
    causes: list[Cause]
    verdict: Verdict
    model: str | None = None


class RequestSummary(msgspec.Struct, frozen=True):
    """A request in the list of recent ones."""

    object: Literal["request"]
    id: str
    client_id: str | None
    response_id: str | None
    tenant: str | None
    endpoint: Endpoint
    created: float
    state: State
    outcome: Outcome | None
    status: int | None
    seconds: float
    queue_seconds: float | None
    time_to_first_token: float | None
    missed: list[Miss]
    prompt_tokens: int
    output_tokens: int
    verdict: Verdict
    model: str | None = None


class RequestList(msgspec.Struct, frozen=True):
    """Requests that the server remembers."""

    object: Literal["list"]
    data: list[RequestSummary]
