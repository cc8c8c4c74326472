"""How users of a simulated world come over HTTP, and what the server in front of its engine allows."""

import functools
import random
from dataclasses import dataclass

from msgspec.structs import replace

from penstock.access.admission import QueueBounds
from penstock.access.tenants import _salt
from penstock.bundled.registry import find_bundled
from penstock.core.request import Standing
from penstock.core.sampling import SamplingParams
from penstock.core.vectors import Pooling
from penstock.text.chat_template import ChatEncoder, ChatTemplate, load_chat_template
from penstock.text.tokenizer import Tokenizer, load_tokenizer

COMPLETIONS, CHAT, RESPONSES, MESSAGES, EMBEDDINGS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
)
WEIGHTS = {"one": 1.0, "two": 4.0}
_WORDS = ["rain", "a haiku about snow", "why?", "hello there", "two"]


@dataclass(frozen=True)
class Front:
    """The server in front of an engine.

    Attributes:
        share: of the users, how many come over HTTP.
        keyed: whether it needs API keys; `most` is how many requests one may have under way.
        bounds: of what waits.
        request_timeout: seconds that any request has.
        drain_at: when its end begins, in seconds, and how long running requests may take then.
    """

    share: float
    keyed: bool
    most: int | None
    bounds: QueueBounds
    request_timeout: float | None
    drain_at: float | None
    drain_seconds: float


@dataclass(frozen=True)
class Manner:
    """How a request is sent and its answer read.

    Attributes:
        path: the endpoint.
        stream, usage: whether the answer comes as events, and its usage with them.
        timeout: seconds that the request asks for.
        tries: how often it is sent altogether where it is refused; `heeds` says whether `Retry-After` is waited for.
        parts: seconds before each piece of its body.
        room: unread bytes from which on the application has to wait.
        cancels: events after which it is cancelled by name.
        content: of a chat's message.
        salt: that it asks for.
    """

    path: str
    stream: bool
    usage: bool
    timeout: float | None
    tries: int
    heeds: bool
    parts: tuple[float, ...]
    room: int
    cancels: int | None
    content: str
    salt: str


@functools.cache
def language() -> tuple[Tokenizer, ChatTemplate, ChatEncoder]:
    """The bundled model's."""
    tokenizer = load_tokenizer(find_bundled("haiku").directory)
    template = load_chat_template(tokenizer)
    return tokenizer, template, ChatEncoder(tokenizer, template)


def front(rng: random.Random, *, poisoned: bool) -> Front:
    """What a seed's server allows. Where a request ends every engine, nothing else ends it."""
    return Front(
        share=rng.choice([0.0, 0.3, 0.7, 1.0, 1.0]),
        keyed=rng.random() < 0.4,
        most=rng.choice([None, 1, 3]),
        bounds=QueueBounds(
            requests=rng.choice([1, 2, 4, 1000]),
            tokens=rng.choice([8, 60, 10**6, 10**6]),
            ttft=rng.choice([None, None, 0.05, 2.0]),
        ),
        request_timeout=None if poisoned else rng.choice([None, None, None, 1.0, 30.0]),
        drain_at=None if poisoned or rng.random() < 0.85 else rng.random() * 6.0,
        drain_seconds=rng.choice([0.0, 0.5, 20.0]),
    )


def manner(
    rng: random.Random, params: SamplingParams, pooling: Pooling | None, salt: str, *, stays: bool
) -> tuple[Manner, SamplingParams]:
    """How a request comes, and its parameters as its endpoint can have them."""
    path = EMBEDDINGS if pooling is not None else COMPLETIONS
    if pooling is None and params.prompt_logprobs is None:
        path = rng.choice([COMPLETIONS, COMPLETIONS, CHAT, CHAT, RESPONSES, MESSAGES])
    if path in (RESPONSES, MESSAGES):
        params = replace(params, n=1, ignore_eos=False)
    stream = path != EMBEDDINGS and params.prompt_logprobs is None and rng.random() < 0.6
    chosen = Manner(
        path=path,
        stream=stream,
        usage=rng.random() < 0.5,
        timeout=rng.choice([None, None, None, None, 0.01, rng.random() * 3]),
        tries=rng.choice([1, 2, 4]),
        heeds=rng.random() < 0.5,
        parts=rng.choice([(0.0,), (0.0,), (0.0, 0.2), (0.1, 0.0, 0.3)]),
        room=rng.choice([0, 300, 65536]),
        cancels=rng.randint(2, 8) if path == RESPONSES and stream and stays and rng.random() < 0.5 else None,
        content=rng.choice(_WORDS),
        salt="" if path == MESSAGES else salt,
    )
    return chosen, params


def standing(rng: random.Random, front: Front, manner: Manner, priority: int) -> Standing:
    """Whose the request is: who has a key is a tenant, everybody else is the same one."""
    # Beyond 32 bits, nobody may ask.
    priority = 0 if manner.path == MESSAGES else min(priority, 7)
    if not front.keyed:
        return Standing(priority=priority, cache_salt=manner.salt)
    tenant = rng.choice(sorted(WEIGHTS))
    return Standing(priority=priority, tenant=tenant, weight=WEIGHTS[tenant], cache_salt=_salt(tenant, manner.salt))
