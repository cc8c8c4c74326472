"""What a user asks of sampling: `SamplingParams`, valid from the moment it exists."""

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.core.beam_search import BeamSearch
from penstock.core.checks import (
    check_boolean,
    check_characters,
    check_integer,
    check_list,
    check_mapping,
    check_number,
)
from penstock.core.errors import InvalidParameter, ModelFileError
from penstock.core.grammar import Grammar

MAX_SAMPLES = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKENS = 1024
MAX_LOGIT_BIAS = 1024
# No vocabulary has more.
MAX_ALLOWED_TOKENS = 2**20
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 1024


class ReasoningBudget(msgspec.Struct, frozen=True, kw_only=True):
    """How much an output may reason before it answers. Construction raises `InvalidParameter`.

    Attributes:
        tokens: most tokens between the marks of the block that an output begins with. Where a character is not
            complete then, its last tokens come first, three at most.
        closing: the tokens that are then chosen to end it, one after another.
        opened: whether the prompt has opened the block.
        marks: what is around it, a name in `text.reasoning.MARKS`.
    """

    tokens: int
    closing: tuple[int, ...]
    opened: bool = False
    marks: str = "think"

    def __post_init__(self) -> None:
        check_integer("reasoning_budget.tokens", self.tokens, 0, 2**31 - 1)
        check_list("reasoning_budget.closing", self.closing)
        msgspec.structs.force_setattr(self, "closing", tuple(self.closing))
        for token in self.closing:
            check_integer("reasoning_budget.closing", token, 0, 2**31 - 1)
        if not self.closing:
            raise InvalidParameter("reasoning_budget.closing", "is empty; reasoning ends with at least one token.")
        check_boolean("reasoning_budget.opened", self.opened)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the tokens of one request are chosen and when it ends.

    A token is argmax(logit / temperature + Gumbel noise) over the survivors of top-k, top-p and min-p; at
    temperature 0 it is the argmax, ties going to the lower id. Construction raises `InvalidParameter`.

    Attributes:
        n: samples of the same prompt, 1..128; sample i uses random numbers of its own.
        temperature: 0 (greedy) up to 100.
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set whose probability reaches top_p, in (0, 1].
        min_p: drop tokens less likely than min_p times the most likely one, in [0, 1].
        repetition_penalty: 0.01..100; divides positive and multiplies negative logits of tokens in prompt or output.
        presence_penalty: -2..2, subtracted from the logits of tokens in the output.
        frequency_penalty: -2..2, subtracted once for each occurrence in the output.
        logit_bias: token id → -100..100, added to the logit.
        allowed_token_ids: None, or the only ids that can be chosen, at least one. The ids that end an output are no
            exception: where they are not among them, it ends otherwise.
        bad_words: up to 1,024 words that must not be generated. They have to be made `bad_words_ids` before a request
            is computed, which `LLM`, `AsyncEngine` and the server do.
        bad_words_ids: sequences of ids that must not be generated: where the output ends with all ids of one but the
            last, that one cannot be chosen. The prompt is not looked at.
        seed: 64-bit; None draws one at admission, which the result records.
        max_tokens: most output tokens; None means up to the model's context. 0, to score a prompt and generate nothing,
            only where `prompt_logprobs` is given.
        min_tokens: before these many output tokens, neither end-of-sequence nor stop tokens can be chosen, and
            stop strings do not end the output.
        stop: up to 16 strings that end the output where they begin.
        stop_token_ids: ids that end the output.
        include_stop_str_in_output: keep the stop string in the text.
        ignore_eos: do not end at the model's end-of-sequence tokens.
        logprobs: None, or how many of the most likely tokens to report beside the chosen one, 0..20.
        prompt_logprobs: None, or how many of the most likely tokens to report beside each token of the prompt, 0..20.
            They are of the model's own distribution, without penalties and biases.
        skip_special_tokens: leave special tokens out of the text, except for the ids in `kept_special_tokens`.
        grammar: what the output must look like; a complete output ends, before min_tokens too.
        reasoning_budget: how much of the output may be reasoning, where it begins with a block of it.
        beam: None, or how the `n` likeliest outputs are searched for, at most `beam.width`. Nothing is drawn then: the
            temperature is 0 or 1, no token is dropped by top_k, top_p or min_p, and there is no reasoning_budget.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    kept_special_tokens: tuple[int, ...] = ()
    grammar: Grammar | None = None
    reasoning_budget: ReasoningBudget | None = None
    beam: BeamSearch | None = None

    def __post_init__(self) -> None:
        check_integer("n", self.n, 1, MAX_SAMPLES)
        check_number("temperature", self.temperature, 0.0, 100.0)
        check_integer("top_k", self.top_k, -1, 2**31 - 1)
        check_number("top_p", self.top_p, 0.0, 1.0, exclusive_low=True)
        check_number("min_p", self.min_p, 0.0, 1.0)
        check_number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            check_integer("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, 0, 2**31 - 1)
            if self.max_tokens == 0 and self.prompt_logprobs is None:
                raise InvalidParameter(
                    "max_tokens", "0 is accepted only where log probabilities of the prompt are asked for."
                )
        check_integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter("min_tokens", f"{self.min_tokens} is more than max_tokens ({self.max_tokens}).")
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            check_integer("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            check_boolean(name, getattr(self, name))
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise InvalidParameter("grammar", "must be a Grammar, such as Grammar.json_schema({...}).")
        if self.reasoning_budget is not None and not isinstance(self.reasoning_budget, ReasoningBudget):
            raise InvalidParameter("reasoning_budget", "must be a ReasoningBudget.")
        if self.beam is not None:
            self._check_beam(self.beam)
        self._normalise_collections()

    def _check_beam(self, beam: BeamSearch) -> None:
        """Refuse what beam search has no place for."""
        if not isinstance(beam, BeamSearch):
            raise InvalidParameter("beam", "must be a BeamSearch, such as BeamSearch(width=4).")
        if self.n > beam.width:
            raise InvalidParameter(
                "n", f"beam search with {beam.width} beams finds no {self.n} outputs; ask for fewer."
            )
        neutral = {"temperature": (0.0, 1.0), "top_k": (0, -1), "top_p": (1.0,), "min_p": (0.0,)}
        for name, accepted in neutral.items():
            if getattr(self, name) not in accepted:
                raise InvalidParameter(name, "beam search draws no tokens; leave it out.")
        if self.reasoning_budget is not None:
            raise InvalidParameter("reasoning_budget", "beam search cannot keep to one; leave one of them out.")
        if self.max_tokens == 0:
            raise InvalidParameter("max_tokens", "beam search generates at least one token.")

    def _normalise_collections(self) -> None:
        """Make tuples of lists, and check what is in them."""
        stop: Any = self.stop
        stop = (stop,) if isinstance(stop, str) else () if stop is None else stop
        check_list("stop", stop)
        msgspec.structs.force_setattr(self, "stop", tuple(stop))
        if len(stop) > MAX_STOP_STRINGS:
            raise InvalidParameter("stop", f"{len(stop)} strings given, at most {MAX_STOP_STRINGS} are accepted.")
        for text in stop:
            if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_LENGTH:
                raise InvalidParameter("stop", f"each must be a string of 1 to {MAX_STOP_LENGTH} characters.")
            check_characters("stop", text)
        for name in ("stop_token_ids", "kept_special_tokens"):
            self._normalise_ids(name, MAX_STOP_TOKENS)
        if self.allowed_token_ids is not None:
            self._normalise_ids("allowed_token_ids", MAX_ALLOWED_TOKENS)
            if not self.allowed_token_ids:
                raise InvalidParameter("allowed_token_ids", "is empty, so that no token can be chosen; leave it out.")
        self._normalise_bad_words()
        if self.logit_bias is not None:
            check_mapping("logit_bias", self.logit_bias)
            if len(self.logit_bias) > MAX_LOGIT_BIAS:
                raise InvalidParameter("logit_bias", f"at most {MAX_LOGIT_BIAS} entries are accepted.")
            for token, bias in self.logit_bias.items():
                check_integer("logit_bias", token, 0, 2**31 - 1)
                check_number("logit_bias", bias, -100.0, 100.0)

    def _normalise_ids(self, name: str, most: int) -> None:
        ids: Any = getattr(self, name)
        msgspec.structs.force_setattr(self, name, _ids(name, ids, most))

    def _normalise_bad_words(self) -> None:
        words: Any = self.bad_words
        words = () if words is None else words
        check_list("bad_words", words)
        msgspec.structs.force_setattr(self, "bad_words", tuple(words))
        if len(words) > MAX_BAD_WORDS:
            raise InvalidParameter("bad_words", f"{len(words)} words given, at most {MAX_BAD_WORDS} are accepted.")
        for word in words:
            if not isinstance(word, str) or not 1 <= len(word) <= MAX_BAD_WORD_LENGTH:
                raise InvalidParameter("bad_words", f"each must be a string of 1 to {MAX_BAD_WORD_LENGTH} characters.")
            check_characters("bad_words", word)
        sequences: Any = self.bad_words_ids
        check_list("bad_words_ids", sequences)
        checked = tuple(_ids("bad_words_ids", ids, MAX_BAD_WORD_LENGTH) for ids in sequences)
        if not all(checked):
            raise InvalidParameter("bad_words_ids", "each must have at least one id.")
        msgspec.structs.force_setattr(self, "bad_words_ids", checked)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether a token's logit depends on the tokens before it."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def _ids(name: str, ids: Any, most: int) -> tuple[int, ...]:
    """Token ids as a tuple; raises InvalidParameter where they are none."""
    ids = () if ids is None else ids
    check_list(name, ids)
    if len(ids) > most:
        raise InvalidParameter(name, f"at most {most} ids are accepted.")
    # To look at each id of a whole vocabulary would take long.
    if not set(map(type, ids)) <= {int} or (ids and not (min(ids) >= 0 and max(ids) < 2**31)):
        for token in ids:
            check_integer(name, token, 0, 2**31 - 1)
    return tuple(ids)


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What applies where a request is silent; None leaves it to `SamplingParams`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    @classmethod
    def from_generation_config(cls, config: Mapping[str, Any]) -> "SamplingDefaults":
        """The sampling parameters that the authors of a model recommend in its `generation_config.json`.

        Raises ModelFileError where one is out of range.
        """
        chosen = {name: config[name] for name in cls.__struct_fields__ if config.get(name) is not None}
        try:
            SamplingParams(**chosen)
        except InvalidParameter as error:
            raise ModelFileError(f"generation_config.json: {error.message}") from None
        return cls(**chosen)

    def given(self) -> dict[str, Any]:
        """The values that are recommended, by name."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}

    def params(self, **given: Any) -> SamplingParams:
        """Parameters with these values; what is not given is as recommended. Raises InvalidParameter."""
        return SamplingParams(**self.given() | {name: each for name, each in given.items() if each is not None})
