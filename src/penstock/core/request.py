"""A request as the engine accepts it: tokens and resolved parameters, nothing left to default."""

from collections.abc import Sequence

import msgspec

from penstock.core.kv_policy import KVPolicy
from penstock.core.sampling import SamplingParams
from penstock.core.vectors import Pooling

MAX_SALT_LENGTH = 256
MAX_TENANT_LENGTH = 256
# The least and the most weight of a tenant.
WEIGHTS = (0.001, 1000.0)
# Requests of this priority and beyond compute only in steps in which no other request does.
BACKGROUND_PRIORITY = 2**31
# The header with which a gateway says that a request is to have such a priority.
BACKGROUND = b"x-penstock-background"


# The header that names the conversation which a request is a part of.
SESSION = b"x-session-id"


class KeptPrefix(msgspec.Struct, frozen=True, array_like=True):
    """The prompt's first `tokens` tokens stay in the prefix cache for `seconds`, again from each use on."""

    tokens: int
    seconds: float


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a request stands to others. The defaults hold for every request that says nothing else.

    Attributes:
        priority: lower runs first; first come, first served within one priority and tenant. From BACKGROUND_PRIORITY
            on, a request runs only where no other waits.
        tenant: for whom it is computed, a name of up to MAX_TENANT_LENGTH characters. Within one priority, tenants
            whose requests wait are served in turn, each as its `weight` says.
        weight: how much of the engine the tenant has beside others, within WEIGHTS.
        cache_salt: requests share cached prefixes only within one salt, of up to MAX_SALT_LENGTH characters.
    """

    priority: int = 0
    tenant: str = ""
    weight: float = 1.0
    cache_salt: str = ""


EVERYBODY = Standing()


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One admitted request. The prompt is token ids; text never reaches the engine.

    Attributes:
        request_id: unique handle; the bits from 32 up are the engine's generation, which rises when it is restarted.
        prompt_token_ids: at least one id, each below the model's vocabulary size.
        sampling: with `seed` and `max_tokens` resolved (never None).
        eos_token_ids: ids that end the output unless `sampling.ignore_eos`.
        standing: how it stands to others.
        pooling: None to generate. Else nothing is, whatever `sampling` says: the prompt's final hidden states become
            one vector.
        pooled_from: the first of its tokens whose states go into that.
        source: tokens that an encoder reads and the output is made of, where the model is an encoder–decoder; the
            prompt is the beginning of the output then, as its decoder sees it.
        unseen: how many of its last tokens no token sees, where a model's tokens see what is behind them.
        second_from: the first token of the second of two texts, which a model may tell apart; 0: there is one.
        keep: prefixes of the prompt to be kept, the shorter first; whole blocks of them are, while there is room.
        output: tokens that its output begins with, which another engine has generated; of a request with one sample.
        keep_whole: seconds for which all of it, prompt and output, is kept beyond the pool once it ends, where there is
            something beyond the pool and while there is room; 0: no longer than anything else.
        offered_at: where another replica offers the blocks of its prompt; empty: nowhere.
        kv_policy: what it keeps of its context where it may not hold all of it; None: everything.
    """

    request_id: int
    prompt_token_ids: list[int]
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    standing: Standing = EVERYBODY
    pooling: Pooling | None = None
    keep: tuple[KeptPrefix, ...] = ()
    output: tuple[int, ...] = ()
    keep_whole: float = 0.0
    kv_policy: KVPolicy | None = None
    pooled_from: int = 0
    source: tuple[int, ...] = ()
    unseen: int = 0
    offered_at: str = ""

    @property
    def given(self) -> Sequence[int]:
        """The prompt as its client knows it: an encoder–decoder's is the source."""
        return self.source or self.prompt_token_ids

    @property
    def sequences(self) -> int:
        """How many sequences share its prompt: its beams, or its samples."""
        beam = self.sampling.beam
        return self.sampling.n if beam is None else beam.width

    second_from: int = 0

    @property
    def max_tokens(self) -> int | None:
        """Most output tokens; None where `sampling` was not resolved."""
        return self.sampling.max_tokens if self.pooling is None else 0
