"""The Python interface: `LLM` for batches of prompts in this process, `AsyncEngine` for a service of one's own."""

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from penstock.api.tasks import check_embeds
from penstock.assembly import inputs
from penstock.assembly.inputs import Message, Prompt, as_batch, prompt_tokens
from penstock.assembly.prepare import Prepared, prepare
from penstock.assembly.results import Completion, completion_of
from penstock.assembly.scoring import Asked, Classified, LabelledToken, Ranked, Scoring, TextOrPair
from penstock.assembly.starting import EngineStart
from penstock.configuration.options import EngineOptions
from penstock.core.beam_params import BeamSearchParams
from penstock.core.config import EngineConfig
from penstock.core.errors import ConfigurationError, EngineUnavailable, InvalidParameter
from penstock.core.events import LoadSnapshot
from penstock.core.facts import StepTotals
from penstock.core.kv_policy import FULL, AskedPolicy, KVPolicy
from penstock.core.request import Request, Standing
from penstock.core.sampling import SamplingDefaults, SamplingParams
from penstock.core.scores import ranked
from penstock.core.sourced import NO_CONVERSATIONS
from penstock.core.vector_form import OutputType, form_of
from penstock.core.vectors import Pooling
from penstock.engine.client import Engine
from penstock.engine.intake import Intake
from penstock.engine.interface import RequestOutput
from penstock.engine.journal import Journal, Mark
from penstock.engine.outputs import RequestState
from penstock.engine.worker import BuiltEngine, EngineBuilder
from penstock.runtime.threads import limit_spinning
from penstock.text.bad_words import with_words_as_ids
from penstock.text.chat_template import NO_TOKENIZER_FOR_TEMPLATE, ChatEncoder, load_chat_template
from penstock.text.forced import forced_bos_of
from penstock.text.tokenizer import Tokenizer

logger = logging.getLogger("penstock")


def chat_encoder(tokenizer: Tokenizer, chat_template: str | None = None) -> ChatEncoder:
    """Writes conversations as the model was trained to see them, or as the template in a file says.

    Raises ConfigurationError where the file has no template, TokenizerError where the model's cannot be used.
    """
    return ChatEncoder(tokenizer, load_chat_template(tokenizer, chat_template))


class LLM:
    """A model loaded into this process, for batches of prompts. As a context manager, it is closed at the block's end.

    Args:
        model: a directory in Hugging Face's layout, a hub name, or a bundled model's name.
        chat_template: a file with the chat template, or its name in the model's directory; the model's own by default.
        build: puts the engine together; by default `assembly.build.build_engine`, as for a server.
        options: the engine options of `penstock serve`, see `configuration.options`.

    Raises StartupError where the model cannot be loaded.
    """

    def __init__(
        self,
        model: str,
        *,
        chat_template: str | None = None,
        build: EngineBuilder | None = None,
        **options: Any,
    ) -> None:
        self._prepared: Prepared = prepare(_options(model, options), api_beside=False)
        _tell(self._prepared)
        self.defaults = self._prepared.sampling
        self._encoder = None if chat_template is None else self._encoder_of(chat_template)
        self.kv_policy = self._prepared.config.kv_policy
        built = (build or _build)(self._prepared.config, lambda done, total: None)
        self._core, self._work, self._flush, self._close = built.core, built.work, built.flush, built.close
        self._is_closed = False
        self._totals = StepTotals()
        self.tokenizer = built.tokenizer
        self._intake = Intake(
            self._core.scheduler.limits,
            built.vocab_size,
            self._prepared.end_tokens(self.tokenizer).ids,
            has_text=self.tokenizer is not None,
            sourced=self._prepared.sourced(self.tokenizer),
        )
        self._info = self._prepared.model_info(self.tokenizer)
        self._scoring = Scoring(self._info, self.tokenizer, self._intake, self._run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that compute with this one, as with `tensor_parallel_size`. It computes nothing more.

        Without it, they end once nothing refers to this and garbage was collected, or with this process.
        """
        self._is_closed = True
        self._close()

    @property
    def load(self) -> LoadSnapshot:
        """State and totals of the engine: blocks, hits, preemptions, tokens."""
        return self._core.snapshot()

    @property
    def totals(self) -> StepTotals:
        """What all steps so far have done."""
        return self._totals

    def flush(self, seconds: float) -> bool:
        """Wait until prefixes are where they are kept beyond the pool, at most for this time; whether they are."""
        return self._flush(seconds)

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        return self._prepared.declaration.vocab_size

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        kv_policy: KVPolicy | Literal["full"] | None = None,
        forced_bos_token: str | int | None = None,
    ) -> list[Completion]:
        """Complete prompts together; results come in the order of the prompts.

        `params` is one for all or one for each; without it the model's own recommendation applies (`defaults`).
        `kv_policy` bounds what each holds of its context; None: as the option of this name says, "full": not at all.
        An encoder–decoder reads the prompts; its outputs begin with `forced_bos_token`, often that of a language, or as
        its files say. It is not among the tokens that are returned.
        Raises RequestError, and computes nothing, where a request can never be served.
        """
        batch, policy = as_batch(prompts), inputs.bounding_policy(kv_policy, self.kv_policy)
        forced = forced_bos_of(forced_bos_token, self.tokenizer)
        return self._generate(batch, params, Standing(priority=priority), [policy] * len(batch), forced)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        priority: int = 0,
        forced_bos_token: str | int | None = None,
    ) -> list[Completion]:
        """The likeliest outputs of each prompt, the best first, as beam search finds them: `samples`, with `beam`.

        The model's own recommendations for sampling do not apply. Raises RequestError as `generate` does.
        """
        return self.generate(
            prompts, params.sampling(), priority=priority, kv_policy=FULL, forced_bos_token=forced_bos_token
        )

    def _generate(
        self,
        batch: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        standing: Standing,
        policies: Sequence[KVPolicy | None],
        forced_bos: int | None = None,
    ) -> list[Completion]:
        """The same with a policy for each prompt."""
        each = [params or self.defaults.params()] * len(batch) if not isinstance(params, Sequence) else list(params)
        if len(each) != len(batch):
            raise InvalidParameter("params", f"{len(each)} given for {len(batch)} prompts; give one, or one for each.")
        requests = [
            self._intake.request(
                prompt_tokens(prompt, self.tokenizer),
                with_words_as_ids(chosen, self.tokenizer),
                standing,
                kv_policy=policy,
                forced_bos=forced_bos,
            )
            for prompt, chosen, policy in zip(batch, each, policies, strict=True)
        ]
        return [completion_of(state) for state in self._run(requests)]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling: Pooling | None = None,
        *,
        input_type: str | None = None,
        dimensions: int | None = None,
        output_dtype: OutputType = "float",
        priority: int = 0,
    ) -> list[list[float]]:
        """A vector for each prompt, in their order.

        It is made of the model's final hidden states (behind the last norm, before the head) as the checkpoint says, or
        by another `pooling`. Where it says nothing, it is that of the last token, of an encoder's tokens the mean, and
        of length 1. `input_type` names one of the checkpoint's prompts, which is put before each text; None: the usual
        one, if there is one. `dimensions` keeps the first numbers, `output_dtype` makes integers of them
        (`VectorForm`).

        Raises RequestError, and computes nothing, where a prompt is too long, RowFailed where the model computed no
        number, and StepOutOfMemory where a GPU's memory ended.
        """
        check_embeds(self._info)
        modules = self._info.vectors
        form = form_of(modules, self._info.embedding_size, dimensions, output_dtype)
        pooling = inputs.one_vector(pooling or modules.pooling)
        texts = inputs.vector_inputs(as_batch(prompts), self.tokenizer, modules, input_type)
        standing = Standing(priority=priority)
        requests = [self._intake.embedding(ids, pooling, standing, first) for ids, first in texts]
        return [inputs.vector_in(state.take(), form) for state in self._run(requests)]

    def embed_tokens(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        input_type: str | None = None,
        dimensions: int | None = None,
        output_dtype: OutputType = "float",
        priority: int = 0,
    ) -> list[list[list[float]]]:
        """For each text the vectors of its tokens, see `embed`.

        A model of late interaction tells `input_type` "query" and "document" (the usual one) apart, and leaves out what
        its checkpoint says, punctuation of documents most often.
        """
        modules = self._info.vectors
        form = form_of(modules, self._info.embedding_size, dimensions, output_dtype)
        given = [inputs.late_input(text, self.tokenizer, modules, input_type) for text in as_batch(texts)]
        standing = Standing(priority=priority)
        requests = [self._intake.embedding(text.ids, "tokens", standing, unseen=text.unseen) for text in given]
        states = self._run(requests)
        return [inputs.vectors_in(state.take(), form, text) for state, text in zip(states, given, strict=True)]

    def classify(
        self, inputs: TextOrPair | Sequence[TextOrPair], *, use_activation: bool = True, priority: int = 0
    ) -> list[Classified]:
        """The classes of each text, or of each pair of texts (a tuple), by a model that knows classes.

        Without `use_activation`, scores are logits. Raises as `embed` does, and where the model knows none.
        """
        texts = [inputs] if isinstance(inputs, (str, tuple)) else list(inputs)
        return self._scoring.classify(texts, Asked(use_activation, None, Standing(priority=priority)))

    def label_tokens(self, texts: str | Sequence[str], *, priority: int = 0) -> list[list[LabelledToken]]:
        """For each text the likeliest class of each token, by a model that knows classes of tokens.

        Raises as `classify` does.
        """
        given = [texts] if isinstance(texts, str) else list(texts)
        return self._scoring.label_tokens(given, standing=Standing(priority=priority))

    def score(
        self,
        first: str | Sequence[str],
        second: str | Sequence[str],
        *,
        use_activation: bool = True,
        instruction: str | None = None,
        priority: int = 0,
    ) -> list[float]:
        """The score of `first` with each of `second`, or of each with its counterpart.

        Of a model that makes vectors, it is the cosine of both, or MaxSim. `instruction` is the task of a model that is
        told one, see docs/reranking.md. Raises as `classify` does.
        """
        asked = Asked(use_activation, instruction, Standing(priority=priority))
        return self._scoring.score(first, second, asked)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        instruction: str | None = None,
        priority: int = 0,
    ) -> list[Ranked]:
        """Documents by their scores with the query (see `score`), the best first, at most `top_n` of them."""
        scores = self.score(query, documents, instruction=instruction, priority=priority)
        return [Ranked(index, scores[index], documents[index]) for index in ranked(scores, top_n)]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | None = None,
        *,
        kv_policy: AskedPolicy | KVPolicy | Literal["full"] | None = None,
    ) -> list[Completion]:
        """Answer one conversation, or several, written with the chat template.

        Messages are OpenAI's: what the template would leave out or refuse in their shape, it gets in another one.
        `kv_policy` is as in `generate`; the system messages that a conversation begins with are never dropped, unless
        an `AskedPolicy` protects none.
        """
        if self._intake.has_sources:
            raise InvalidParameter("messages", NO_CONVERSATIONS)
        if self.tokenizer is None:
            raise InvalidParameter("messages", "no tokenizer is loaded, so text cannot be read; use generate with ids.")
        if self._encoder is None:
            self._encoder = chat_encoder(self.tokenizer)
        encoder, asked = self._encoder, inputs.asked_policy(kv_policy, self.kv_policy)
        conversations = inputs.as_conversations(messages)
        prompts = [encoder.encode(conversation) for conversation in conversations]
        policies = [
            inputs.protecting(asked, encoder, ids, conversation)
            for ids, conversation in zip(prompts, conversations, strict=True)
        ]
        return self._generate([{"prompt_token_ids": ids} for ids in prompts], params, Standing(), policies)

    def _encoder_of(self, chat_template: str) -> ChatEncoder:
        """What is asked for is looked at before the model is loaded, which takes longer."""
        tokenizer = self._prepared.load_tokenizer()
        if tokenizer is None:
            raise ConfigurationError(NO_TOKENIZER_FOR_TEMPLATE)
        return chat_encoder(tokenizer, chat_template)

    def _run(self, requests: list[Request]) -> list[RequestState]:
        """What became of each request, all of them being finished."""
        if self._is_closed:
            raise EngineUnavailable("This LLM was closed; make another one.")
        table = self.tokenizer.table if self.tokenizer is not None else None
        states = {request.request_id: RequestState(request, table, self._now()) for request in requests}
        for request in requests:
            self._core.prepare(request)
        try:
            for request in requests:
                self._core.add(request)
            # What comes in for none of them, from a tier that does not answer, is not waited for.
            unfinished = set(states)
            while self._core.has_work and (unfinished or self._core.has_begun):
                events = self._core.step()
                self._totals = self._totals.add(self._core.facts, self._work.of(self._core.facts))
                now = self._now()
                for event in events:
                    states[event.request_id].push(event, now)
                    if states[event.request_id].finished:
                        unfinished.discard(event.request_id)
        except BaseException:
            # An interrupted call must not leave its requests to the next one.
            for request in requests:
                self._core.abort(request.request_id)
            raise
        return list(states.values())

    def _now(self) -> Mark:
        return Mark(self._core.clock(), self._totals)


def _options(model: str, options: dict[str, Any]) -> EngineOptions:
    """An engine's options. Raises ConfigurationError for what a server alone does."""
    found = EngineOptions.of(model, **options)
    if found.cache.role != "both":
        raise ConfigurationError(
            "role is of `penstock serve` behind a gateway, which hands prompts over; leave it out."
        )
    return found


def _build(config: EngineConfig, progress: Callable[[int, int], None]) -> BuiltEngine:
    # Imports torch, which takes a second.
    # Before torch is imported, unless the program has done so.
    limit_spinning()
    from penstock.assembly.build import build_engine

    return build_engine(config, progress)


def _tell(prepared: Prepared) -> None:
    """Log what of the model's files is not as its configuration says."""
    for reason in prepared.found:
        logger.warning("%s: %s (%s)", reason.setting, reason.value, reason.why)


class AsyncEngine:
    """An engine in a process of its own, for services: many requests at a time, each an async iterator.

    async with await AsyncEngine.start("path/or/name") as engine:
        async for output in engine.generate("…", SamplingParams(max_tokens=64)):
            print(output.deltas[0].text, end="")
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer | None,
        defaults: SamplingDefaults,
        kv_policy: AskedPolicy | None = None,
    ) -> None:
        self._engine = engine
        self.kv_policy = kv_policy
        self.tokenizer = tokenizer
        self.defaults = defaults

    @classmethod
    async def start(cls, model: str, **options: Any) -> Self:
        """Load `model` with the engine options of `penstock serve`; raises StartupError where that is impossible."""
        start = await EngineStart.begin(_options(model, options))
        try:
            defaults = start.prepared.sampling
            _tell(start.prepared)
            tokenizer = await start.load()
            await start.ready(tokenizer)
        except BaseException:
            await start.engine.close()
            raise
        return cls(start.engine, tokenizer, defaults, start.prepared.config.kv_policy)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def has_sources(self) -> bool:
        """Whether it is an encoder–decoder, which reads prompts and takes no conversations."""
        return self._engine.model.sourced is not None

    @property
    def load(self) -> LoadSnapshot:
        """The newest snapshot of the engine's load."""
        return self._engine.load

    @property
    def totals(self) -> StepTotals:
        """What all steps have done."""
        return self._engine.totals

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        tenant: str = "",
        weight: float = 1.0,
        cache_salt: str = "",
        kv_policy: KVPolicy | Literal["full"] | None = None,
        forced_bos_token: str | int | None = None,
        follow: Callable[[Journal], None] | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """Outputs of one request as they come. Closing the iterator aborts the request.

        Without `params` the model's own recommendation applies (`defaults`). Requests of several tenants are served in
        turn, so that each gets as much of the engine as its `weight` says while others wait. `kv_policy` and
        `forced_bos_token` are as in `LLM.generate`. `follow` is called with the request's journal, which is filled in
        with what the engine does with it.
        """
        ids = prompt_tokens(prompt, self.tokenizer)
        standing = Standing(priority=priority, tenant=tenant, weight=weight, cache_salt=cache_salt)
        params = with_words_as_ids(params or self.defaults.params(), self.tokenizer)
        policy = inputs.bounding_policy(kv_policy, self.kv_policy)
        forced = forced_bos_of(forced_bos_token, self.tokenizer)
        return self._engine.generate(ids, params, standing=standing, kv_policy=policy, forced_bos=forced, follow=follow)

    async def embed(
        self,
        prompt: Prompt,
        pooling: Pooling | None = None,
        *,
        input_type: str | None = None,
        dimensions: int | None = None,
        output_dtype: OutputType = "float",
        priority: int = 0,
        cache_salt: str = "",
    ) -> list[float]:
        """The vector of one prompt, see `LLM.embed`. Cancelling aborts the request."""
        model, standing = self._engine.model, Standing(priority=priority, cache_salt=cache_salt)
        check_embeds(model)
        form = form_of(model.vectors, model.embedding_size, dimensions, output_dtype)
        ids, first = inputs.vector_input(prompt, self.tokenizer, model.vectors, input_type)
        pooling = inputs.one_vector(pooling or model.vectors.pooling)
        outputs = self._engine.embed(ids, pooling, pooled_from=first, standing=standing)
        async with contextlib.aclosing(outputs):
            found = [output async for output in outputs]
        return inputs.vector_in(found[-1], form)

    async def close(self) -> None:
        """End the engine's process; requests in flight end with EngineUnavailable."""
        await self._engine.close()
