"""What a request asks of the engine, whichever dialect it came in."""

import re
import time
import uuid
from typing import Literal

import msgspec

from penstock.access.admission import AdmissionRequest
from penstock.access.tenants import Tenant, standing_of
from penstock.api.scored import Scored
from penstock.core.errors import InvalidParameter
from penstock.core.handover import Offer
from penstock.core.kv_policy import KVPolicy
from penstock.core.request import BACKGROUND_PRIORITY, EVERYBODY, KeptPrefix, Standing
from penstock.core.resumption import Begun
from penstock.core.sampling import SamplingParams
from penstock.core.vector_form import VectorForm
from penstock.core.vectors import Pooling
from penstock.text.late_interaction import LateText
from penstock.text.output_format import Parsing


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What one HTTP request asks of the engine.

    Attributes:
        prompts: token ids of each prompt.
        standing: how it stands to others.
        params: for each prompt the parameters, `max_tokens` resolved; none where vectors are asked for.
        user, metadata: whose it is, for the log.
        timeout: seconds from its arrival in which it has to be finished, if the client asks for that.
        service_tier: the tier that was asked for, as the response says it.
        keep: prefixes of the prompt that are to stay in the prefix cache, the shorter first; only of a single prompt.
        keep_whole: seconds for which prompts and outputs are kept beyond the pool, as parts of a conversation.
        kv_policy: how each prompt's context is bounded; None: it is held whole.
        forced_bos: what the outputs of an encoder–decoder begin with; None: as the model says.
        pooling, pooled_from, form, encoding_format: of vectors; `pooling` is None where tokens are generated.
        late: how each prompt becomes vectors of its tokens, of a model of late interaction; else there is none.
        seconds: where the second text of each prompt begins, 0: it has one; empty where none has two.
        scored: what becomes of vectors that are scores; None: they are told as they are.
        cut: how many tokens of prompts were left out, because the request asks for that; None: it does not.
        echo: text to put before each prompt's outputs.
        prompt_logprobs: None, or how many of the most likely tokens are written beside each token of the prompts. What
            the engine computes may be more, for `echo`.
        values: how many log probabilities of prompts, or numbers of vectors, the response holds at most.
        parsing: how outputs are cut into pieces; None where they are text and nothing else.
        ignored: names of the request's fields that have no effect.
        stream, include_usage, return_token_ids: how the response is written.
        begun: what its client has got from another server of the only answer; None where this one begins it.
        hands_over: whether another server goes on behind the first token (`api/handover.py`).
        offer: where another server offers what it has computed of the prompt; None: nowhere.
        tracked: whether a stream says which tokens are behind its events (`api/resumption.py`).
        counted: whether the answer says what it has used (`core/usage.py`).
        continuous_usage: whether every event has the usage so far; only with include_usage.
        obfuscated: whether streamed events are padded, so that their sizes tell less of their texts.
    """

    prompts: list[list[int]]
    params: list[SamplingParams]
    standing: Standing = EVERYBODY
    user: str | None = None
    metadata: dict[str, str] | None = None
    timeout: float | None = None
    service_tier: str | None = None
    keep: tuple[KeptPrefix, ...] = ()
    keep_whole: float = 0.0
    kv_policy: KVPolicy | None = None
    forced_bos: int | None = None
    pooling: Pooling | None = None
    pooled_from: int = 0
    form: VectorForm | None = None
    encoding_format: Literal["float", "base64"] = "float"
    late: tuple[LateText, ...] = ()
    seconds: tuple[int, ...] = ()
    scored: Scored | None = None
    cut: int | None = None
    echo: list[str] | None = None
    prompt_logprobs: int | None = None
    values: int = 0
    parsing: Parsing | None = None
    ignored: tuple[str, ...] = ()
    stream: bool = False
    begun: Begun | None = None
    hands_over: bool = False
    offer: Offer | None = None
    tracked: bool = False
    counted: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    obfuscated: bool = False
    return_token_ids: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts of the request together."""
        return sum(map(len, self.prompts))

    @property
    def admission_request(self) -> AdmissionRequest:
        """What admission needs to know of it."""
        beam = self.params[0].beam if self.params else None
        return AdmissionRequest(
            prompts=tuple(map(len, self.prompts)),
            samples=self.params[0].n if self.params else 1,
            max_tokens=tuple(params.max_tokens for params in self.params) or (0,) * len(self.prompts),
            priority=self.standing.priority,
            tenant=self.standing.tenant,
            beams=1 if beam is None else -(-beam.width // self.params[0].n),
        )

    def response(self, prefix: str) -> tuple[str, int]:
        """The id of its response, a new one that begins with a prefix, and when that began, in seconds of Unix' clock.

        Another server may have begun it. Raises InvalidParameter where that gave it an id of another kind.
        """
        if self.begun is not None:
            if not re.fullmatch(re.escape(prefix) + "[0-9a-f]{32}", self.begun.id):
                raise InvalidParameter("id", f"must be {prefix!r} and 32 hexadecimal digits.")
            return self.begun.id, self.begun.created
        return prefix + uuid.uuid4().hex, int(time.time())

    def in_background(self) -> "Job":
        """The same behind all that are not in the background; its priority orders it among those that are."""
        priority = BACKGROUND_PRIORITY + 2**31 + self.standing.priority
        return msgspec.structs.replace(self, standing=msgspec.structs.replace(self.standing, priority=priority))

    def of_tenant(self, tenant: Tenant) -> "Job":
        """The same as one of the tenant's."""
        return msgspec.structs.replace(self, standing=standing_of(tenant, self.standing))
