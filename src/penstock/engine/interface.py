"""What the server sees of an engine: one protocol, its outputs and what it says of the model."""

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

import msgspec

from penstock.core.beam_search import BeamScore
from penstock.core.ceilings import Ceilings
from penstock.core.errors import EngineUnavailable, RowFailed, rebuild_error
from penstock.core.events import KeptTokens, LoadSnapshot
from penstock.core.facts import StepFacts, StepTotals
from penstock.core.kv_policy import AskedPolicy, KVPolicy
from penstock.core.plan import Ending, FinishReason, TokenLogprobs
from penstock.core.request import EVERYBODY, KeptPrefix, Standing
from penstock.core.sampling import SamplingParams
from penstock.core.sourced import Sourced
from penstock.core.vectors import Pooling, VectorModules
from penstock.engine.journal import Journal


class ModelInfo(msgspec.Struct, frozen=True):
    """The served model, as users need to know it.

    Attributes:
        name: the name under which it is served; `aliases` are accepted too.
        max_model_len: most tokens of prompt and output together.
        vocab_size: ids below it are valid.
        embedding_size: numbers in a vector.
        eos_token_ids: ids that end an output.
        created: Unix time at which serving began, in seconds.
        identity: another server with the same gives the same bits, if its weights are the same; empty where it may not.
        form: of blocks that are handed over: another with the same takes them, if its weights are the same.
        offers_at: where blocks of prompts are offered to replicas that decode; empty: nowhere.
        kv_policy: how requests bound their contexts that do not say it themselves; None: not at all.
        keeps_conversations: whether conversations can be kept beyond the KV pool.
        vectors: how it makes vectors.
        generates: whether it makes tokens, too.
        sourced: how outputs of an encoder–decoder begin, whose prompts are sources; None for all else.
    """

    name: str
    max_model_len: int
    vocab_size: int
    embedding_size: int
    eos_token_ids: tuple[int, ...] = ()
    aliases: tuple[str, ...] = ()
    created: int = 0
    identity: str = ""
    form: str = ""
    offers_at: str = ""
    kv_policy: AskedPolicy | None = None
    keeps_conversations: bool = False
    vectors: VectorModules = VectorModules()
    generates: bool = True
    sourced: Sourced | None = None

    @property
    def longest_prompt(self) -> int:
        """Most tokens of a prompt, where it leaves no room for output unless it is a source."""
        return self.max_model_len if self.sourced is None else self.sourced.longest

    def room_behind(self, prompt: int) -> int:
        """Most tokens of output behind a prompt of this length; an encoder–decoder's has a context of its own."""
        return self.max_model_len - (prompt if self.sourced is None else 2)


class SampleDelta(msgspec.Struct):
    """What one sample gained since the last output: text that may be shown now, and the ids behind it.

    Text lags behind ids where a character or a possible stop string is not complete. The output's `ending` is on the
    sample's last delta, and only there. `ends` has for each token how many characters of the text had come with it.
    An output of beam search comes whole, with how likely it is (`beam`).
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    ending: Ending | None = None
    ends: list[int] = []
    beam: BeamScore | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the sample ended; None while it goes on."""
        return None if self.ending is None else self.ending.reason

    def by_token(self) -> list["SampleDelta"]:
        """The same as a delta for each token; the last one has the end."""
        if len(self.token_ids) < 2:
            return [self]
        places = [0, *self.ends[:-1], len(self.text)]
        parts = [
            SampleDelta(self.index, self.text[start:end], [token], ends=[end - start])
            for token, start, end in zip(self.token_ids, places[:-1], places[1:], strict=True)
        ]
        for part, logprobs in zip(parts, self.logprobs or (), strict=False):
            part.logprobs = [logprobs]
        parts[-1].ending, parts[-1].beam = self.ending, self.beam
        return parts

    def check(self) -> None:
        """Raise RowFailed, StepOutOfMemory or EngineUnavailable where the sample has failed."""
        ending = self.ending
        if ending is None:
            return
        if ending.reason == "error":
            message = ending.error or "The computation of this request failed."
            raise rebuild_error(ending.code or RowFailed.code, message)
        if ending.reason == "abort":
            raise EngineUnavailable("The engine stopped before this request was finished; send it again.")


class RequestOutput(msgspec.Struct):
    """One message about a request: deltas of at least one sample.

    Attributes:
        prompt_logprobs: where asked for, an entry for each token of the prompt, None for the first; on the request's
            first output, and only there. Missing where the request ended before its prompt was computed.
        embedding: the vector of a request that asks for one, on its last output: float32 in the machine's order of
            bytes, of length 1.
        seed: that its randomness follows from; None where a hosted model does not tell it.
        kept: from a request's first token on, what became of the prefixes of its prompt that it wants kept.
        dropped_tokens: of a request with a policy for its context, how many of its tokens have been dropped so far.
            Until some are, its output is what it would be without the policy.
    """

    request_id: int
    deltas: list[SampleDelta]
    prompt_tokens: int
    cached_tokens: int
    seed: int | None
    finished: bool
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    embedding: bytes | None = None
    kept: KeptTokens | None = None
    dropped_tokens: int = 0


class EngineClient(Protocol):
    """An engine as its users hold it, in this process or another."""

    @property
    def model(self) -> ModelInfo:
        """The model that is served."""

    @property
    def load(self) -> LoadSnapshot:
        """The newest snapshot of the engine's load."""

    @property
    def totals(self) -> StepTotals:
        """What all steps have done; it begins at 0 with the server, whatever becomes of its engines."""

    def observe(self, observer: Callable[[StepFacts], None]) -> None:
        """Have the facts of each step from now on given to `observer`, which must be quick and never raise."""

    @property
    def ceilings(self) -> Ceilings | None:
        """What the machine was measured to do; None where it was not."""

    @property
    def process_id(self) -> int | None:
        """Of the process that computes; None where there is none of its own."""

    def check_ready(self) -> None:
        """Raise EngineUnavailable with the cause unless requests can be served now."""

    def generate(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        standing: Standing = EVERYBODY,
        keep: tuple[KeptPrefix, ...] = (),
        keep_whole: float = 0.0,
        output: tuple[int, ...] = (),
        kv_policy: KVPolicy | None = None,
        forced_bos: int | None = None,
        offered_at: str = "",
        follow: Callable[[Journal], None] | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """Submit a request and yield its outputs until all samples have finished.

        The only sample's output begins with `output`, which another server has generated from the same seed. It is the
        first thing that is yielded. Its last tokens are generated once more: where they differ here, it fails.
        Prefixes of the prompt in `keep`, the shorter first, stay in the prefix cache for a time, while there is room.
        All of it is kept beyond the pool for `keep_whole` seconds, where there is something beyond the pool.
        With a `kv_policy`, it holds no more of its context than that says. An encoder–decoder reads the prompt, and its
        output begins with `forced_bos` if there is one, which is not among what is yielded.
        Blocks of the prompt that another replica has computed are pulled from where they are `offered_at`, if anywhere.
        Once it is submitted, `follow` is called with its journal, which is filled in from then on.

        Raises RequestError at once where the request can never be served, EngineUnavailable where the engine is not
        there. Closing the generator, or cancelling the task that awaits it, aborts the request.
        """

    def embed(
        self,
        prompt_token_ids: list[int],
        pooling: Pooling,
        *,
        pooled_from: int = 0,
        unseen: int = 0,
        second_from: int = 0,
        standing: Standing = EVERYBODY,
        follow: Callable[[Journal], None] | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """Submit a request for one vector of a text; it has one output, with `embedding` unless its sample failed.

        Tokens before `pooled_from` do not go into it. No token sees the last `unseen` ones. Where the pooling is
        "tokens", it has a vector for each, one after another. Those from `second_from` on are of a
        second text, unless it is 0.

        Raises, and is aborted, as in `generate`.
        """


def model_name(engine: EngineClient) -> str | None:
    """Of the model that is served; None before there is one."""
    try:
        return engine.model.name
    except EngineUnavailable:
        return None
