"""How bodies become jobs: what reads their fields, texts and conversations, and where that runs."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from msgspec.structs import replace

from penstock.api.fields import FieldReader
from penstock.api.job import Job
from penstock.api.parsing import Names, in_terms_of, renamed
from penstock.api.policies import FieldPolicies
from penstock.api.requests import ChatFields
from penstock.api.resolve import Resolver
from penstock.core.sampling import SamplingDefaults
from penstock.engine.interface import ModelInfo
from penstock.http.answers import brief
from penstock.observability.account import PREPARED, working
from penstock.text.chat_template import ChatEncoder, ChatTemplate, load_chat_template
from penstock.text.output_format import OutputFormat, choose_format
from penstock.text.table import TokenTable
from penstock.text.template_budget import TakesLong, in_a_moment
from penstock.text.tokenizer import Tokenizer

# Shorter bodies are tokenized on the event loop: it takes less time than handing them to a thread.
INLINE_BODY_BYTES = 8 * 1024
TOKENIZER_THREADS = 2

Result = TypeVar("Result")


class Reading:
    """What turns the bodies of one server's requests into jobs.

    Attributes:
        tokenizer: None where prompts are token ids only.
        resolver: from fields to jobs.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        template: ChatTemplate | None = None,
        output_format: OutputFormat | None = None,
        defaults: SamplingDefaults | None = None,
        policies: FieldPolicies | None = None,
    ) -> None:
        """`template` and `output_format` are the model's own by default.

        Raises TokenizerError where the model's chat template cannot be used.
        """
        policies, chat = policies or FieldPolicies(), None
        if tokenizer is not None:
            template = template or load_chat_template(tokenizer)
            chat = ChatEncoder(tokenizer, template)
            output_format = output_format or choose_format(template, tokenizer)[0]
        self.tokenizer = tokenizer
        self.resolver = Resolver(
            tokenizer, chat, defaults or SamplingDefaults(), output_format, policies.max_tokens_policy
        )
        self._unknown_fields = policies.unknown_fields
        self._threads = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")

    @property
    def table(self) -> TokenTable | None:
        """The bytes of each token; None without a tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.table

    def reader(self) -> FieldReader:
        """What reads the fields of one request."""
        return FieldReader(self._unknown_fields)

    async def beside(self, size: int, function: Callable[..., Result], *arguments: Any) -> Result:
        """The function's result. Where `size`, of what it reads, is large, it runs in a thread beside the loop.

        So it does where a chat template takes long all the same: the function is then called again.
        """
        preparation = PREPARED.get()
        if size <= INLINE_BODY_BYTES:
            with contextlib.suppress(TakesLong), in_a_moment(), working(preparation, time.monotonic()):
                return function(*arguments)
        asked = time.monotonic()

        def work() -> Result:
            with working(preparation, asked):
                return function(*arguments)

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def chat(self, fields: ChatFields, names: Names, model: ModelInfo) -> Job:
        """The job of a chat that another dialect's request has become, in the terms of that request's fields."""
        with in_terms_of(names):
            job = self.resolver.chat(fields, model)
        job = replace(job, ignored=tuple(renamed(name, names) for name in job.ignored))
        (params,) = job.params
        if params.grammar is None:
            return job
        # The engine, which compiles it, names the field if it cannot.
        grammar = replace(params.grammar, param=renamed(params.grammar.param, names))
        return replace(job, params=[replace(params, grammar=grammar)])


def told(reader: FieldReader, job: Job) -> Job:
    """The job, with what had no effect when its request was read."""
    return replace(job, ignored=brief((*reader.ignored, *job.ignored)))
