"""What the endpoints of all dialects share: the engine, the tokenizer, and the way of a body to a running job."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from penstock.access.gate import Asked, Gate
from penstock.access.tenants import tenant_of
from penstock.api.extras import may_have_priority
from penstock.api.fields import FieldReader, UnknownFields
from penstock.api.generation import Deadline, GenerationResponse, Writer, begun
from penstock.api.parsing import Names, in_terms_of, renamed
from penstock.api.resolve import Job, Resolver
from penstock.api.schema import ChatFields
from penstock.core.errors import Overloaded
from penstock.engine.interface import EngineClient
from penstock.http.answers import brief
from penstock.http.arrival import ARRIVED
from penstock.http.body import BodyRoom, read_json_body
from penstock.http.error_bodies import Dialects, error_response
from penstock.http.errors import as_penstock_error
from penstock.http.request_ids import caller_of, client_id_of
from penstock.observability.account import PREPARED, Account, working
from penstock.observability.accounts import Accounts
from penstock.observability.metrics import Endpoint, Metrics, RequestMeter, outcome_of
from penstock.text.table import TokenTable
from penstock.text.template_budget import TakesLong, in_a_moment
from penstock.text.tokenizer import Tokenizer

# Shorter bodies are tokenized on the event loop: it takes less time than handing them to a thread.
INLINE_BODY_BYTES = 8 * 1024
TOKENIZER_THREADS = 2

Result = TypeVar("Result")
Prepare = Callable[[bytes], Awaitable[tuple[Job, Writer]]]


class Service:
    """One server's parts, as its endpoints use them."""

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer | None,
        resolver: Resolver,
        metrics: Metrics,
        max_body_bytes: int,
        gate: Gate,
        accounts: Accounts,
        request_timeout: float | None = None,
        unknown_fields: UnknownFields = "refuse",
        dialects: Dialects | None = None,
    ) -> None:
        """`request_timeout` is how many seconds any request has at most; `unknown_fields`, what becomes of them."""
        self.engine = engine
        self.tokenizer = tokenizer
        self.resolver = resolver
        self.metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._gate = gate
        self._accounts = accounts
        self._room = BodyRoom()
        self._request_timeout = request_timeout
        self._unknown_fields = unknown_fields
        self._dialects = dialects or Dialects()
        self._threads = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")

    def reader(self) -> FieldReader:
        """What reads the fields of one request."""
        return FieldReader(self._unknown_fields)

    @property
    def table(self) -> TokenTable | None:
        """The bytes of each token; None without a tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.table

    async def read(self, request: Request) -> bytes:
        """A request's body. Raises EngineUnavailable before there is an engine, RequestError for what is no JSON."""
        # Before it is ready, an engine knows nothing of its model that a request could be checked against.
        self.engine.check_ready()
        return await read_json_body(request, self._max_body_bytes, self._room)

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

    def chat(self, fields: ChatFields, names: Names) -> Job:
        """The job of a chat that another dialect's request has become, in the terms of that request's fields."""
        with in_terms_of(names):
            job = self.resolver.chat(fields, self.engine.model)
        job = replace(job, ignored=tuple(renamed(name, names) for name in job.ignored))
        (params,) = job.params
        if params.grammar is None:
            return job
        # The engine, which compiles it, names the field if it cannot.
        grammar = replace(params.grammar, param=renamed(params.grammar.param, names))
        return replace(job, params=[replace(params, grammar=grammar)])

    async def generate(self, request: Request, endpoint: Endpoint, prepare: Prepare) -> Response | GenerationResponse:
        """The response to a request whose body `prepare` turns into a job and the writer of its outputs."""
        meter = self.metrics.begin(endpoint, request.scope.get("state", {}).get(ARRIVED))
        tenant = tenant_of(request)
        account = self._accounts.begin(endpoint, tenant.name, meter.arrived, client_id_of(request))
        account.caller = caller_of(request)
        arrived = asyncio.get_running_loop().time()
        PREPARED.set(account.preparation)
        try:
            self.engine.check_ready()
            # What is refused costs little: at best it is not even read, which the HTTP layer does, and forgets.
            self._gate.check()
            body = await self.read(request)
            account.body(len(body))
            asked = Asked(tenant.name, endpoint, body, may_have_priority(body))
            checked = self._gate.check_asked(asked)
            job, writer = await prepare(body)
            job = job.of_tenant(tenant)
            deadline = self._deadline(job, arrived)
            admitted = self._gate.admit(asked, job.demand, checked=checked)
        except asyncio.CancelledError:
            meter.end("cancelled")
            account.status = None
            self._accounts.end(account, "cancelled")
            raise
        except Exception as problem:
            return self._refused(problem, request, meter, account)
        meter.accepted(job.prompt_tokens)
        begun(account, job)
        self._accounts.answered_as(account, writer.id)
        return GenerationResponse(self.engine, job, writer, meter, admitted, self._accounts, account, deadline)

    def _refused(self, problem: Exception, request: Request, meter: RequestMeter, account: Account) -> Response:
        # An exception that a local variable of a frame in its own traceback refers to is garbage in a cycle, with all
        # that these frames know: a server that refuses much would be held up by looking for it.
        error = as_penstock_error(problem)
        outcome = outcome_of(error)
        if isinstance(error, Overloaded):
            self.metrics.refused[error.code] += 1
        meter.end(outcome)
        form = self._dialects.at(request.scope["path"]).errors
        account.judged(meter.ttft, meter.missed)
        self._accounts.refuse(account, outcome, error, form.status(error))
        return error_response(error, form)

    def _deadline(self, job: Job, arrived: float) -> Deadline | None:
        """The earlier one of what the client asks for and what the server allows."""
        most, asked = self._request_timeout, job.timeout
        seconds = min((value for value in (most, asked) if value is not None), default=None)
        return None if seconds is None else Deadline(arrived + seconds, seconds, seconds == asked)


def told(reader: FieldReader, job: Job) -> Job:
    """The job, with what had no effect when its request was read."""
    return replace(job, ignored=brief((*reader.ignored, *job.ignored)))
