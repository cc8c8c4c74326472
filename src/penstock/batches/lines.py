"""One line of a batch: the way that a request over HTTP takes, without the HTTP, and behind all such requests."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import msgspec

from penstock.access.keys import Keyring
from penstock.access.tenants import Tenant
from penstock.api.generation import outputs_of
from penstock.api.job import Job
from penstock.api.job_endpoint import JobEndpoint
from penstock.api.records import begun
from penstock.batches.input import InputLine
from penstock.core.config import BACKGROUND_TOKENS
from penstock.core.errors import EngineUnavailable, InvalidParameter, RequestError
from penstock.engine.interface import EngineClient
from penstock.http.error_bodies import error_body
from penstock.http.errors import as_penstock_error
from penstock.observability.account import Account, working
from penstock.observability.accounts import Accounts, failed
from penstock.observability.metrics import Outcome, outcome_of
from penstock.storage.batches import Batch, LineResult

# A step for batches computes at most BACKGROUND_TOKENS positions; a few more lines are at hand when some of them end.
LINES_AT_A_TIME = BACKGROUND_TOKENS + BACKGROUND_TOKENS // 2
# Seconds that a line waits whose model is started again.
_UNREADY_SECONDS = 0.2


class Lines(Protocol):
    """What runs the requests of batches."""

    @property
    def endpoints(self) -> Collection[str]:
        """Paths that a batch can ask for."""

    @property
    def at_a_time(self) -> int:
        """How many may run now."""

    def is_ready(self) -> bool:
        """Whether lines can run now."""

    def serves(self, batch: Batch) -> bool:
        """Whether the owner of a batch may still ask."""

    async def run(self, line: InputLine, batch: Batch) -> LineResult:
        """The line's result, of whatever kind. Raises EngineUnavailable where it has to run again later."""


@dataclass(frozen=True)
class RunModel:
    """A model that lines can ask for: what computes, what its endpoints do by path, and accounts of its requests."""

    engine: EngineClient
    job_endpoints: Mapping[str, JobEndpoint]
    accounts: Accounts


class LineRunner:
    """Runs requests of batches on engines.

    Args:
        models: one at least.
        choose: the number of the model that a body asks a path for; raises RequestError.
    """

    at_a_time = LINES_AT_A_TIME

    def __init__(self, models: Sequence[RunModel], choose: Callable[[bytes, str], int], keys: Keyring) -> None:
        self._models = models
        self._choose = choose
        self._keys = keys
        # One of its own: those of other requests stay free, and the event loop too.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch-lines")

    @property
    def endpoints(self) -> Collection[str]:
        """Paths that a batch can ask for."""
        return self._models[0].job_endpoints.keys()

    def is_ready(self) -> bool:
        """Whether lines can run now: those for one model at least."""
        return any(_is_ready(model.engine) for model in self._models)

    def serves(self, batch: Batch) -> bool:
        """Whether the owner of a batch may still ask. A batch whose owner's key is gone waits until the key is back,
        unless tenants without keys ask through a gateway.
        """
        return self._keys.may_ask(batch.owner)

    async def run(self, line: InputLine, batch: Batch) -> LineResult:
        """The line's result, of whatever kind. Raises EngineUnavailable where it has to run again later."""
        owner, (model, refusal) = batch.owner, self._chosen(line, batch.endpoint)
        endpoint = model.job_endpoints[batch.endpoint]
        account = model.accounts.begin_line(endpoint.name, owner)
        account.client_id = line.custom_id
        outcome: Outcome = "cancelled"
        try:
            if refusal is not None:
                raise refusal
            if not _is_ready(model.engine):
                # It comes again at once, as those for other models can run.
                await asyncio.sleep(_UNREADY_SECONDS)
            status, body = 200, await self._answer(line, model, endpoint, owner, account)
            outcome = "completed"
        except EngineUnavailable as unavailable:
            failed(account, unavailable, unavailable.http_status)
            raise
        except Exception as problem:
            error = as_penstock_error(problem)
            status, body = error.http_status, error_body(error)
            failed(account, error, status)
            outcome = outcome_of(error)
        finally:
            model.accounts.end(account, outcome)
        output = answered_line(line.custom_id, account.id, status, body, account.ignored)
        return LineResult(line.number, status == 200, output)

    def _chosen(self, line: InputLine, path: str) -> tuple[RunModel, RequestError | None]:
        """The model that a line is for; why there is none, and the first one, where it is for none that can do it."""
        try:
            return self._models[self._choose(line.body, path)], None
        except RequestError as error:
            return self._models[0], error

    async def _answer(
        self, line: InputLine, model: RunModel, endpoint: JobEndpoint, owner: str, account: Account
    ) -> bytes:
        loop, asked = asyncio.get_running_loop(), time.monotonic()
        account.body(len(line.body))

        def resolve() -> Job:
            with working(account.preparation, asked):
                return endpoint.resolve(line.body)

        job = await loop.run_in_executor(self._thread, resolve)
        job = job.of_tenant(self._keys.tenant(owner) or Tenant(name=owner))
        if job.stream:
            raise InvalidParameter("stream", "a batch has no streams; leave it out.")
        if job.timeout is not None:
            raise InvalidParameter("timeout", "a batch has a completion window of its own; leave it out.")
        job = job.in_background()
        writer = endpoint.writer(job)
        begun(account, job)
        model.accounts.answered_as(account, writer.id)
        async with contextlib.aclosing(outputs_of(model.engine, job, account.follow)) as outputs:
            async for output in outputs:
                account.drop(output.deltas[0].index // (job.params[0].n if job.params else 1), output.dropped_tokens)
                account.finish_reasons += [each.finish_reason for each in output.deltas if each.finish_reason]
                writer.add(output)
                if writer.enough:
                    break
        return await loop.run_in_executor(self._thread, writer.body)


def _is_ready(engine: EngineClient) -> bool:
    try:
        engine.check_ready()
    except EngineUnavailable:
        return False
    return True


def unanswered_line(custom_id: str, code: str, message: str) -> bytes:
    """The line of the error file for a request that was not run."""
    fields = {"id": _id(), "custom_id": custom_id, "response": None, "error": {"code": code, "message": message}}
    return msgspec.json.encode(fields) + b"\n"


def answered_line(custom_id: str, request_id: str, status: int, body: bytes, ignored: Sequence[str] = ()) -> bytes:
    """The line of the output file, or of the error file, for an answer; `ignored` are fields without effect."""
    response: dict[str, object] = {"status_code": status, "request_id": request_id}
    if ignored:
        # What is a header of a response over HTTP.
        response["ignored"] = list(ignored)
    response["body"] = msgspec.Raw(body)
    return msgspec.json.encode({"id": _id(), "custom_id": custom_id, "response": response, "error": None}) + b"\n"


def _id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
