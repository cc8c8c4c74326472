"""How a request's tokens are chosen: its fields as the engine's parameters, with every default and limit."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from penstock.api.beams import beam_of
from penstock.api.requests import CommonFields
from penstock.api.sources import check_source
from penstock.api.structured import grammar_of
from penstock.core.errors import ContextLengthExceeded, InvalidParameter, Lengths
from penstock.core.sampling import SamplingDefaults, SamplingParams
from penstock.engine.interface import ModelInfo
from penstock.text.bad_words import with_words_as_ids
from penstock.text.tokenizer import Tokenizer

MaxTokensPolicy = Literal["cut", "refuse"]
MAX_TOKENS_POLICIES: tuple[MaxTokensPolicy, ...] = ("cut", "refuse")


class Parameters:
    """Makes them for the requests of one server."""

    def __init__(self, tokenizer: Tokenizer | None, defaults: SamplingDefaults, policy: MaxTokensPolicy) -> None:
        """`policy`: what becomes of a max_tokens that the context has no room for."""
        self._tokenizer = tokenizer
        self._defaults = defaults
        self._policy = policy

    def of(
        self,
        fields: CommonFields,
        max_tokens: int | None,
        logprobs: int | None,
        model: ModelInfo,
        *,
        echoed: int | None = None,
    ) -> SamplingParams:
        """The request's parameters, except that `max_tokens` may still be None."""
        beam = beam_of(fields)
        # What the model's authors recommend is for drawing tokens.
        values: dict[str, Any] = {"temperature": 0.0, "beam": beam} if beam else self._defaults.given()
        for name in SamplingParams.__struct_fields__:
            given = getattr(fields, name, None)
            if given is not None and name not in ("max_tokens", "logprobs", "prompt_logprobs"):
                values[name] = given
        scored = max((top for top in (fields.prompt_logprobs, echoed) if top is not None), default=None)
        if max_tokens is not None and max_tokens > model.max_model_len and not self._may_cut(fields):
            raise ContextLengthExceeded(
                f"max_tokens: {max_tokens} tokens of output are too many; {context_of(model)}.", param="max_tokens"
            )
        guided = {name: getattr(fields, name) for name in fields.__struct_fields__ if name.startswith("guided_")}
        grammar = grammar_of(fields.response_format, fields.structured_outputs, guided)
        if grammar is not None and self._tokenizer is None:
            raise InvalidParameter(grammar.param, "this server has no tokenizer, so it cannot hold text to a grammar.")
        params = SamplingParams(
            **values, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=scored, grammar=grammar
        )
        for name, tokens in (
            ("stop_token_ids", params.stop_token_ids),
            ("logit_bias", params.logit_bias or ()),
            ("allowed_token_ids", params.allowed_token_ids or ()),
        ):
            if tokens and max(tokens) >= model.vocab_size:
                raise InvalidParameter(name, f"{max(tokens)} is not below the vocabulary size {model.vocab_size}.")
        if params.bad_words and self._tokenizer is None:
            raise InvalidParameter("bad_words", "this server has no tokenizer, so words cannot be read; leave it out.")
        if params.stop and self._tokenizer is None:
            raise InvalidParameter(
                "stop", "this server has no tokenizer, so strings are not found; use stop_token_ids."
            )
        return with_words_as_ids(params, self._tokenizer)

    def fit(
        self, params: SamplingParams, prompt: list[int], model: ModelInfo, param: str, default_max_tokens: int | None
    ) -> SamplingParams:
        """The parameters with `max_tokens` resolved; raises ContextLengthExceeded where the context is too short."""
        check_source(len(prompt), model, param)
        room = model.room_behind(len(prompt))
        least = 0 if params.max_tokens == 0 else max(1, params.min_tokens)
        if room < least:
            output = f" with at least {_tokens(least)} of output" if least else ""
            raise ContextLengthExceeded(
                f"The prompt has {len(prompt)} tokens; {context_of(model)}, which{output} takes at most "
                f"{model.max_model_len - least} of them. Shorten the prompt.",
                param=param,
                lengths=Lengths(len(prompt), 0, model.max_model_len - least),
            )
        if params.max_tokens is None:
            most = room if default_max_tokens is None else min(room, max(default_max_tokens, params.min_tokens))
            return msgspec.structs.replace(params, max_tokens=most)
        if params.max_tokens <= room:
            return params
        if self._may_cut(params):
            return msgspec.structs.replace(params, max_tokens=room)
        raise ContextLengthExceeded(
            f"The prompt has {len(prompt)} tokens, and {params.max_tokens} tokens of output are asked for; "
            f"{context_of(model)}. Shorten the prompt or ask for at most {room} tokens.",
            param=param,
            lengths=Lengths(len(prompt), params.max_tokens, model.max_model_len),
        )

    def _may_cut(self, asked: CommonFields | SamplingParams) -> bool:
        """Whether an output may have fewer tokens than it may have at most; without an end it would have just these."""
        return self._policy == "cut" and not asked.ignore_eos


def cut_fields(asked: SamplingParams, params: Sequence[SamplingParams], name: str) -> tuple[str, ...]:
    """The name of the field that limits outputs, where one has less than was asked for."""
    return (name,) if any(asked.max_tokens not in (None, each.max_tokens) for each in params) else ()


def _tokens(count: int) -> str:
    return "one token" if count == 1 else f"{count} tokens"


def context_of(model: ModelInfo) -> str:
    """Programs in front of a server know by these words that another model, or a shorter prompt, may help."""
    return f"this model's maximum context length is {model.max_model_len} tokens"
