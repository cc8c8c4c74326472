"""Makes valid requests of what users ask for, before anything reaches the engine."""

import itertools
import secrets
from typing import get_args

import msgspec

from penstock.core.checks import check_characters, check_integer, check_number
from penstock.core.errors import ContextLengthExceeded, InvalidParameter
from penstock.core.kv_policy import KVPolicy, check_policy
from penstock.core.request import EVERYBODY, MAX_SALT_LENGTH, MAX_TENANT_LENGTH, WEIGHTS, KeptPrefix, Request, Standing
from penstock.core.sampling import SamplingParams
from penstock.core.sourced import NO_VECTORS, Sourced, no_source
from penstock.core.vectors import Pooling, pooled_tokens
from penstock.scheduler.admission import Limits, check_request

# Tokens at the end of what another engine has generated that are generated again, to see that they are the same here.
REPEATED = 4
# Requests for vectors sample nothing, and share this.
_OF_VECTORS = SamplingParams(temperature=0.0, seed=0, max_tokens=1)
_BOUNDED = "a request that bounds its context has"
_UNBOUND = 'leave one of them out, or ask for "full"'


class Intake:
    """Resolves what a request left open and refuses what the engine could never serve.

    A missing seed is drawn here, so that it can be reported; a missing `max_tokens` becomes what the context leaves.
    """

    def __init__(
        self,
        limits: Limits,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        *,
        has_text: bool,
        generation: int = 0,
        sourced: Sourced | None = None,
    ) -> None:
        """`sourced`: how outputs of an encoder–decoder begin, whose prompts are sources; None for all else."""
        self._limits = limits
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._has_text = has_text
        self._sourced = sourced
        # Ids of one run of the engine never name a request of another.
        self._ids = itertools.count(generation << 32)

    @property
    def has_sources(self) -> bool:
        """Whether prompts are sources, of an encoder–decoder."""
        return self._sourced is not None

    def new_id(self) -> int:
        """A new id, for a request that was made for an earlier run of the engine."""
        return next(self._ids)

    def request(
        self,
        prompt: list[int],
        params: SamplingParams,
        standing: Standing = EVERYBODY,
        *,
        keep: tuple[KeptPrefix, ...] = (),
        keep_whole: float = 0.0,
        output: tuple[int, ...] = (),
        kv_policy: KVPolicy | None = None,
        forced_bos: int | None = None,
        offered_at: str = "",
    ) -> Request:
        """The request to submit, whose output begins with `output`. Raises RequestError.

        Of an encoder–decoder, `prompt` is the source, and `forced_bos` what its output begins with.
        """
        self._check_common(prompt, standing)
        source: tuple[int, ...] = ()
        if self._sourced is not None:
            source, prompt = self._as_source(self._sourced, prompt, params, forced_bos)
            never = (*params.bad_words_ids, *self._sourced.never)
            params = msgspec.structs.replace(params, bad_words_ids=never)
        elif forced_bos is not None:
            raise no_source("forced_bos_token")
        if not self._limits.generates:
            raise InvalidParameter("model", "it is an encoder and generates nothing; ask it for vectors or scores.")
        self._check_choice(params)
        self._check_output(params, output)
        if kv_policy is not None:
            self._check_policy(kv_policy, params, whole=bool(keep or output))
        if params.stop and not self._has_text:
            raise InvalidParameter("stop", "no tokenizer is loaded, so strings cannot be matched; use stop_token_ids.")
        if params.reasoning_budget is not None:
            self._check_tokens("reasoning_budget.closing", params.reasoning_budget.closing)
            if not self._has_text:
                raise InvalidParameter("reasoning_budget", "no tokenizer is loaded, so reasoning cannot be found.")
        if params.grammar is not None and not self._has_text:
            raise InvalidParameter(
                params.grammar.param, "no tokenizer is loaded, so output cannot be held to a grammar."
            )
        context = self._limits.max_model_len
        room = (context if kv_policy is None else kv_policy.longest(context)) - len(prompt)
        if room < 1 and params.max_tokens != 0:
            raise ContextLengthExceeded(
                f"The prompt has {len(prompt)} tokens, which leaves no room for output in this server's context of "
                f"{room + len(prompt)} tokens (max_model_len).",
                param="prompt",
            )
        # A drawn seed must survive clients that read every JSON number as a double.
        seed = secrets.randbits(53) if params.seed is None else params.seed % 2**64
        resolved = msgspec.structs.replace(
            params, seed=seed, max_tokens=min(room, context) if params.max_tokens is None else params.max_tokens
        )
        request = Request(
            request_id=next(self._ids),
            prompt_token_ids=prompt,
            sampling=resolved,
            eos_token_ids=self._eos_token_ids,
            standing=standing,
            keep=keep,
            keep_whole=keep_whole,
            output=output[: max(0, len(output) - REPEATED)],
            kv_policy=kv_policy,
            source=source,
            offered_at=offered_at,
        )
        check_request(request, self._limits)
        return request

    def _as_source(
        self, sourced: Sourced, prompt: list[int], params: SamplingParams, forced_bos: int | None
    ) -> tuple[tuple[int, ...], list[int]]:
        """The prompt as a source, and what the decoder begins with."""
        if params.prompt_logprobs is not None:
            raise InvalidParameter(
                "prompt_logprobs", "an encoder–decoder reads its prompt and gives no probabilities of it; leave it out."
            )
        beginning = sourced.beginning(forced_bos)
        self._check_tokens("forced_bos_token", beginning)
        return tuple(prompt), beginning

    def embedding(
        self,
        prompt: list[int],
        pooling: Pooling,
        standing: Standing = EVERYBODY,
        pooled_from: int = 0,
        *,
        unseen: int = 0,
        second_from: int = 0,
    ) -> Request:
        """The request for a vector of `prompt`, of its tokens from `pooled_from` on. Raises RequestError.

        No token sees the last `unseen` ones. `second_from` is the first token of a second text; 0: there is one text.
        """
        self._check_common(prompt, standing)
        if self._sourced is not None:
            raise InvalidParameter("model", NO_VECTORS)
        if pooling not in get_args(Pooling):
            raise InvalidParameter("pooling", f"must be one of {', '.join(get_args(Pooling))}.")
        request = Request(
            request_id=next(self._ids),
            prompt_token_ids=prompt,
            sampling=_OF_VECTORS,
            standing=standing,
            pooling=pooling,
            pooled_from=len(prompt) - pooled_tokens(len(prompt), pooled_from),
            unseen=unseen,
            second_from=second_from,
        )
        check_request(request, self._limits)
        return request

    def _check_policy(self, policy: KVPolicy, params: SamplingParams, *, whole: bool) -> None:
        """Refuse a policy that cannot be followed, or not for such a request; `whole`: its context has to be whole."""
        limits = self._limits
        check_policy(policy, limits.kv_policies, limits.spec.block_size, limits.max_model_len)
        if params.beam is not None:
            raise InvalidParameter("kv_policy", f"{_BOUNDED} no beams; {_UNBOUND}.")
        if params.n > 1:
            raise InvalidParameter("kv_policy", f"{_BOUNDED} one sample, and n is {params.n}; {_UNBOUND}.")
        if whole:
            raise InvalidParameter(
                "kv_policy",
                f"{_BOUNDED} no prefix that is kept, and no output that another engine has begun; {_UNBOUND}.",
            )

    def _check_output(self, params: SamplingParams, output: tuple[int, ...]) -> None:
        """Refuse the beginning of an output where it is not known how that went on."""
        if not output:
            return
        self._check_tokens("output", output)
        if params.n != 1 or params.beam or params.prompt_logprobs is not None or params.seed is None:
            raise InvalidParameter(
                "output", "only one sample, with a seed, no scores of its prompt and no beams, can go on."
            )
        if params.max_tokens is not None and len(output) >= params.max_tokens:
            raise InvalidParameter(
                "output", f"it has {len(output)} tokens of at most {params.max_tokens}, so that none can follow."
            )

    def _check_choice(self, params: SamplingParams) -> None:
        """Refuse what leaves no token to choose from the first on, or was not made token ids."""
        self._check_tokens("stop_token_ids", params.stop_token_ids)
        self._check_tokens("logit_bias", params.logit_bias or ())
        if params.bad_words:
            raise InvalidParameter("bad_words", "no tokenizer is loaded, so words cannot be read; use bad_words_ids.")
        budget = params.reasoning_budget
        for sequence in params.bad_words_ids:
            self._check_tokens("bad_words", sequence)
            if budget is not None and _contains(budget.closing, sequence):
                raise InvalidParameter("bad_words", "forbids what ends a reasoning whose budget is used up.")
        if params.allowed_token_ids is None:
            return
        self._check_tokens("allowed_token_ids", params.allowed_token_ids)
        left = set(params.allowed_token_ids) - {ids[0] for ids in params.bad_words_ids if len(ids) == 1}
        if not left:
            raise InvalidParameter("allowed_token_ids", "has only tokens that bad_words forbids; allow another one.")
        if params.min_tokens and left <= {*self._eos_token_ids, *params.stop_token_ids}:
            raise InvalidParameter(
                "allowed_token_ids", "has only tokens that end the output, which min_tokens forbids; allow another one."
            )
        if budget is not None and not left.issuperset(budget.closing):
            raise InvalidParameter(
                "allowed_token_ids", "lacks tokens that end a reasoning whose budget is used up; leave out the budget."
            )

    def _check_common(self, prompt: list[int], standing: Standing) -> None:
        self._check_tokens("prompt", prompt)
        check_integer("priority", standing.priority, -(2**63), 2**63 - 1)
        check_number("weight", standing.weight, *WEIGHTS)
        texts = (("tenant", standing.tenant, MAX_TENANT_LENGTH), ("cache_salt", standing.cache_salt, MAX_SALT_LENGTH))
        for name, text, most in texts:
            if not isinstance(text, str) or len(text) > most:
                raise InvalidParameter(name, f"must be a string of at most {most} characters.")
            check_characters(name, text)

    def _check_tokens(self, name: str, tokens: "list[int] | tuple[int, ...] | dict[int, float]") -> None:
        if not tokens:
            return
        lowest, highest = min(tokens), max(tokens)
        if lowest < 0 or highest >= self._vocab_size:
            wrong = lowest if lowest < 0 else highest
            raise InvalidParameter(
                name, f"token id {wrong} is outside this model's vocabulary, 0..{self._vocab_size - 1}."
            )


def _contains(tokens: tuple[int, ...], sequence: tuple[int, ...]) -> bool:
    return any(tokens[place : place + len(sequence)] == sequence for place in range(len(tokens)))
