"""From the fields of a request to what the engine is asked for: prompts as ids, parameters with every default."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.api.chat_output import ChatOutput, resolve_output
from penstock.api.conversations import kept_as_asked
from penstock.api.effort import switch_of, variables_of
from penstock.api.extras import asked_standing, check_extras, told_tier
from penstock.api.history import conversation_of, said_in
from penstock.api.job import Job
from penstock.api.kv_policy import bounds_of, policy_of
from penstock.api.names import model_not_found
from penstock.api.parameters import MaxTokensPolicy, Parameters, context_of, cut_fields
from penstock.api.parsing import in_terms_of
from penstock.api.requests import ChatFields, CommonFields, CompletionFields, EmbeddingFields, StreamOptions
from penstock.api.sources import check_sources
from penstock.api.tasks import check_converses, check_embeds, check_generates
from penstock.api.tools import ToolUse, resolve_tools
from penstock.api.truncation import truncation_of
from penstock.api.vectors import MAX_TEXTS, late_texts, put_before, vector_job
from penstock.core.config import BLOCK_SIZE
from penstock.core.errors import ContextLengthExceeded, InvalidParameter, RequestError
from penstock.core.kv_policy import AskedPolicy, KVPolicy
from penstock.core.sampling import SamplingDefaults, SamplingParams
from penstock.core.vector_form import form_of
from penstock.engine.interface import ModelInfo
from penstock.text.chat_template import ChatEncoder
from penstock.text.late_interaction import LateTokens
from penstock.text.output_format import THINKING_SWITCHES, OutputFormat, Parsing
from penstock.text.reasoning import Before
from penstock.text.tokenizer import Tokenizer
from penstock.text.vector_prompts import vector_prompt

COMPLETION_MAX_TOKENS = 16
MAX_CHOICES = MAX_TEXTS
# Log probabilities of prompts in one response, each of some 80 bytes of JSON: a prompt of 131,072 tokens with the most
# likely token beside each.
MAX_PROMPT_LOGPROBS = 2**18
MAX_TEMPLATE_VARIABLES = 64
# More tokens than a mark of reasoning and white space behind it ever are.
_LONGEST_MARK = 32
NO_TOKENIZER = "this server has no tokenizer, so text cannot be read; send token ids to /v1/completions."


class Resolver:
    """Checks a request against the model and resolves its defaults. Tokenizes, so long texts belong off the loop."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        chat: ChatEncoder | None,
        defaults: SamplingDefaults,
        output_format: OutputFormat | None = None,
        max_tokens_policy: MaxTokensPolicy = "cut",
    ) -> None:
        """`max_tokens_policy`: what becomes of a max_tokens that the context has no room for."""
        self._tokenizer = tokenizer
        self._chat = chat
        self._format = output_format or OutputFormat()
        self._parameters = Parameters(tokenizer, defaults, max_tokens_policy)

    @property
    def template_variables(self) -> frozenset[str]:
        """Names that `chat_template_kwargs` can set."""
        return frozenset() if self._chat is None else self._chat.template.variables

    @property
    def reasons(self) -> bool:
        """Whether answers to chats may begin with reasoning."""
        return self._format.reasoning

    @property
    def always_reasons(self) -> bool:
        """Whether they may, and the chat template has no variable that says otherwise."""
        return self.reasons and switch_of(self.template_variables) is None

    def completion(self, fields: CompletionFields, model: ModelInfo) -> Job:
        """Raises RequestError with the cause."""
        check_model_name(fields.model, model)
        check_generates(model)
        policy = policy_of(fields.kv_policy, model, has_system=False)
        model = bounds_of(model, policy)
        # An echoed prompt is part of the text, whose log probabilities are asked for.
        echoed = fields.logprobs if fields.echo else None
        forced_bos = check_sources(fields, model, self._tokenizer)
        template = self._parameters.of(fields, fields.max_tokens, fields.logprobs, model, echoed=echoed)
        # Where nothing is generated, nothing of the context is left for it.
        room = model.longest_prompt - (fields.max_tokens != 0 and model.sourced is None)
        given, prompts = self._prompts(
            "prompt", fields.prompt, model, most_tokens=room, add_special_tokens=fields.add_special_tokens is not False
        )
        texts = [self._text(prompt, fields) for prompt in given] if fields.echo else None
        if len(prompts) * template.n > MAX_CHOICES:
            raise InvalidParameter("n", f"{len(prompts)} prompts × {template.n} samples are more than {MAX_CHOICES}.")
        # What is made of a source ends by itself.
        usual = COMPLETION_MAX_TOKENS if model.sourced is None else None
        params = [self._parameters.fit(template, prompt, model, "prompt", usual) for prompt in prompts]
        scored = {"prompt_logprobs": fields.prompt_logprobs, "logprobs": echoed}
        ignored = cut_fields(template, params, "max_tokens")
        job = self._job(fields, prompts, params, scored, echo=texts, ignored=ignored)
        job = msgspec.structs.replace(kept_as_asked(job, fields, model), forced_bos=forced_bos)
        return job if policy is None else msgspec.structs.replace(job, kv_policy=policy.policy)

    def embedding(self, fields: EmbeddingFields, model: ModelInfo) -> Job:
        """Raises RequestError with the cause."""
        check_model_name(fields.model, model)
        check_embeds(model)
        form = form_of(model.vectors, model.embedding_size, fields.dimensions, fields.output_dtype)
        check_extras(fields)
        if model.vectors.late is not None:
            if self._tokenizer is None:
                raise InvalidParameter("input", NO_TOKENIZER)
            late = late_texts(fields, LateTokens(self._tokenizer, model.vectors.late))
            return vector_job(fields, form, [text.ids for text in late], "tokens", late=late)
        truncation, added = truncation_of(fields, model), fields.add_special_tokens is not False
        prompt = model.vectors.prompt(fields.input_type)
        texts, put = put_before(prompt, fields.input, asked=fields.input_type is not None)
        before = vector_prompt(put, self._tokenizer, model.vectors, added=added)
        given, prompts = self._prompts(
            "input",
            texts,
            model,
            most_tokens=model.max_model_len if truncation is None else None,
            add_special_tokens=added,
        )
        if truncation is not None:
            prompts = [
                truncation.cut(ids, *(before.around if isinstance(text, str) else (0, 0)))
                for text, ids in zip(given, prompts, strict=True)
            ]
        for ids in prompts:
            if len(ids) > model.max_model_len:
                raise ContextLengthExceeded(
                    f"The input has {len(ids)} tokens; {context_of(model)}. Shorten it.",
                    param="input",
                )
        pooling = fields.pooling or model.vectors.pooling
        return vector_job(fields, form, prompts, pooling, pooled_from=before.skipped)

    def chat(self, fields: ChatFields, model: ModelInfo) -> Job:
        """Raises RequestError with the cause."""
        check_model_name(fields.model, model)
        check_converses(model)
        policy, context = policy_of(fields.kv_policy, model, has_system=True), model.max_model_len
        model = bounds_of(model, policy)
        limits = {value for value in (fields.max_tokens, fields.max_completion_tokens) if value is not None}
        if len(limits) > 1:
            raise InvalidParameter("max_tokens", "differs from max_completion_tokens; send one of them.")
        if fields.top_logprobs is not None and not fields.logprobs:
            raise InvalidParameter("top_logprobs", "needs logprobs to be true.")
        logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
        name = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
        with in_terms_of((("logprobs", "top_logprobs"), ("max_tokens", name))):
            template = self._parameters.of(fields, next(iter(limits), None), logprobs, model)
        use = self._tool_use(fields)
        variables, ignored = self._variables(fields)
        prompt = self._chat_prompt(fields, use, variables, model.max_model_len - 1)
        check_ids(prompt, model, "messages")
        output = self._output(fields, use, prompt, template, variables)
        template = msgspec.structs.replace(
            template,
            kept_special_tokens=self._format.kept_tokens(output.parsing),
            grammar=output.grammar,
            reasoning_budget=output.budget,
        )
        # What no context bounds ends after as many tokens as a context has, unless the request says how many.
        params = self._parameters.fit(template, prompt, model, "messages", context)
        scored = {"prompt_logprobs": fields.prompt_logprobs}
        ignored += cut_fields(template, [params], name)
        job = self._job(fields, [prompt], [params], scored, parsing=output.parsing, ignored=ignored)
        job = kept_as_asked(job, fields, model)
        if policy is None:
            return job
        return msgspec.structs.replace(job, kv_policy=self._protecting(policy, fields, prompt, use, variables))

    def _protecting(
        self,
        policy: AskedPolicy,
        fields: ChatFields,
        prompt: list[int],
        use: ToolUse | None,
        variables: Mapping[str, Any],
    ) -> KVPolicy:
        """The policy for a chat's prompt, which may begin with what is never to be dropped."""
        if self._chat is None or policy.protect == "none":
            return policy.policy
        try:
            opening = self._chat.opening_tokens(
                prompt,
                conversation_of(fields.messages),
                tools=None if use is None else use.offered,
                add_special_tokens=bool(fields.add_special_tokens),
                variables=variables,
            )
        except RequestError as error:
            raise InvalidParameter(
                "kv_policy.protect",
                "the chat template does not write this conversation's system messages before another message, so that "
                'it is not known which tokens they are; ask for "none".',
            ) from error
        return policy.protecting(opening, BLOCK_SIZE)

    def chat_prompt(self, fields: ChatFields) -> list[int]:
        """The ids of a conversation, however long it is; raises RequestError with the cause."""
        variables, _ = self._variables(fields)
        return self._chat_prompt(fields, self._tool_use(fields), variables, None)

    def _tool_use(self, fields: ChatFields) -> ToolUse | None:
        return resolve_tools(fields.tools, fields.tool_choice, fields.parallel_tool_calls, self._format)

    def _variables(self, fields: ChatFields) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """What the chat template is told beside the messages, and the fields that it has no words for."""
        if self._chat is None:
            return {}, ()
        given = _template_variables(fields.chat_template_kwargs, self._chat.template.variables)
        if fields.reasoning_effort is None:
            return given, ()
        variables, exact = variables_of(fields.reasoning_effort, self._chat.template)
        return {**variables, **given}, () if exact else ("reasoning_effort",)

    def _chat_prompt(
        self, fields: ChatFields, use: ToolUse | None, variables: Mapping[str, Any], most_tokens: int | None
    ) -> list[int]:
        if self._chat is None:
            raise InvalidParameter("messages", NO_TOKENIZER)
        continued = bool(fields.continue_final_message)
        if continued and fields.add_generation_prompt:
            raise InvalidParameter("continue_final_message", "cannot be combined with add_generation_prompt.")
        add_prompt = not continued if fields.add_generation_prompt is None else fields.add_generation_prompt
        return self._chat.encode(
            conversation_of(fields.messages),
            tools=None if use is None else use.offered,
            add_generation_prompt=add_prompt,
            continue_final_message=continued,
            add_special_tokens=bool(fields.add_special_tokens),
            variables=variables,
            most_tokens=most_tokens,
        )

    def _job(
        self,
        fields: CommonFields,
        prompts: list[list[int]],
        params: list[SamplingParams],
        scored: dict[str, int | None],
        echo: list[str] | None = None,
        parsing: Parsing | None = None,
        ignored: tuple[str, ...] = (),
    ) -> Job:
        """`scored` has the fields that ask for log probabilities of the prompts."""
        stream = bool(fields.stream)
        if stream and fields.prompt_logprobs is not None:
            raise InvalidParameter(
                "prompt_logprobs", "cannot be streamed; leave out stream, or send echo and logprobs to /v1/completions."
            )
        check_extras(fields)
        options = fields.stream_options or StreamOptions()
        return Job(
            prompts=prompts,
            params=params,
            standing=asked_standing(fields),
            timeout=fields.timeout,
            user=fields.user,
            metadata=fields.metadata,
            service_tier=told_tier(fields.service_tier),
            echo=echo,
            prompt_logprobs=fields.prompt_logprobs,
            values=_prompt_logprobs(prompts, params[0].n, scored),
            parsing=parsing,
            ignored=ignored + (() if params[0].grammar is None else params[0].grammar.unenforced),
            stream=stream,
            include_usage=bool(options.include_usage),
            continuous_usage=bool(options.continuous_usage_stats),
            obfuscated=bool(options.include_obfuscation),
            return_token_ids=bool(fields.return_token_ids),
        )

    def _output(
        self,
        fields: ChatFields,
        use: ToolUse | None,
        prompt: list[int],
        params: SamplingParams,
        variables: Mapping[str, Any],
    ) -> ChatOutput:
        return resolve_output(
            self._format,
            params.grammar,
            use,
            before=self._before_answer(fields, prompt, variables) if self._format.reasoning else "nothing",
            reasoning_shown=fields.include_reasoning is not False,
            reasoning_tokens=fields.thinking_token_budget,
        )

    def _before_answer(self, fields: ChatFields, prompt: list[int], variables: Mapping[str, Any]) -> Before:
        """What may come before the answer, of a model that reasons."""
        begun = said_in(fields.messages[-1]) if fields.continue_final_message else ""
        end = "" if self._tokenizer is None else self._tokenizer.decode(prompt[-_LONGEST_MARK:], skip_special=False)
        before = self._format.before_answer(end, begun)
        # Where a template says it without a mark, it is the client who has said that there shall be none.
        unwanted = any(variables.get(switch) is False for switch in THINKING_SWITCHES)
        return "nothing" if unwanted and before == "reasoning" else before

    def _prompts(
        self, param: str, given: Any, model: ModelInfo, *, most_tokens: int | None, add_special_tokens: bool
    ) -> tuple[Sequence[str | list[int]], list[list[int]]]:
        """Each prompt as it was given, a text or ids, and its ids; without `most_tokens`, however long it is."""
        single = isinstance(given, str) or (bool(given) and all(isinstance(item, int) for item in given))
        prompts: Sequence[Any] = [given] if single else given
        if not prompts:
            raise InvalidParameter(param, "is empty; send at least one token.")
        if len(prompts) > MAX_CHOICES:
            raise InvalidParameter(param, f"{len(prompts)} prompts given, at most {MAX_CHOICES} are accepted.")
        ids: list[list[int]] = []
        for prompt in prompts:
            if isinstance(prompt, int) or type(prompt) is not type(prompts[0]):
                raise InvalidParameter(param, "must be a string, a list of strings, of token ids, or of lists of ids.")
            tokens = prompt
            if isinstance(prompt, str):
                tokens = self._encode(param, prompt, most_tokens, add_special_tokens)
            check_ids(tokens, model, param)
            ids.append(tokens)
        return prompts, ids

    def _encode(self, param: str, prompt: str, most_tokens: int | None, add_special_tokens: bool) -> list[int]:
        if self._tokenizer is None:
            raise InvalidParameter(param, NO_TOKENIZER)
        # A tokenizer may make a BOS token of it. A client that wants to continue that token alone can send its id.
        if not prompt:
            raise InvalidParameter(param, "it is empty; at least one character, or one token id, is needed.")
        if most_tokens is not None:
            self._tokenizer.check_length(prompt, most_tokens, param)
        return self._tokenizer.encode(prompt, add_special_tokens)

    def _text(self, prompt: str | list[int], fields: CompletionFields) -> str:
        if isinstance(prompt, str):
            return prompt
        if self._tokenizer is None:
            raise InvalidParameter("echo", "this server has no tokenizer, so token ids cannot become text.")
        return self._tokenizer.decode(prompt, fields.skip_special_tokens is not False)


def check_model_name(name: str | None, model: ModelInfo) -> None:
    """Raise ModelNotFound unless a request may use this name; None stands for the model that it came to."""
    if name is not None and name != model.name and name not in model.aliases:
        raise model_not_found(name, [model.name])


def check_ids(ids: list[int], model: ModelInfo, param: str) -> None:
    """Raise InvalidParameter unless there are ids, all of the vocabulary."""
    if not ids:
        raise InvalidParameter(param, "is empty; send at least one token.")
    for token in (min(ids), max(ids)):
        if not 0 <= token < model.vocab_size:
            raise InvalidParameter(param, f"the token id {token} is outside the vocabulary, 0..{model.vocab_size - 1}.")


def _prompt_logprobs(prompts: Sequence[list[int]], n: int, scored: dict[str, int | None]) -> int:
    """How many log probabilities of prompts a response has, each choice repeating them; refuses too many."""
    total = 0
    tokens = sum(map(len, prompts))
    for name, top in scored.items():
        if top is None:
            continue
        # Beside the most likely tokens stands the prompt's own.
        total += tokens * (top + 1) * n
        if total > MAX_PROMPT_LOGPROBS:
            raise InvalidParameter(
                name,
                f"{tokens} prompt tokens with {top + 1} log probabilities each in {n} samples are too many: "
                f"at most {MAX_PROMPT_LOGPROBS} fit into one response. Send fewer prompts, or ask for fewer.",
            )
    return total


def _template_variables(values: dict[str, Any] | None, known: frozenset[str]) -> dict[str, Any]:
    """Only what the template reads can be set: anything else would change nothing."""
    if not values:
        return {}
    if len(values) > MAX_TEMPLATE_VARIABLES:
        raise InvalidParameter("chat_template_kwargs", f"at most {MAX_TEMPLATE_VARIABLES} are accepted.")
    for name in values:
        if name not in known or name.endswith("_token"):
            settable = ", ".join(sorted(each for each in known if not each.endswith("_token")))
            raise InvalidParameter(
                f"chat_template_kwargs.{name[:40]}",
                f"is not a variable that this model's chat template reads; it reads {settable or 'none'}.",
            )
    return values
