"""One line of a batch: the way that a request over HTTP takes, without the HTTP, and behind all such requests."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from penstock.core.errors import EngineUnavailable, InvalidParameter
from penstock.engine.interface import EngineClient
from penstock.http.error_bodies import error_body
from penstock.http.errors import as_penstock_error
from penstock.observability.account import Account, working
from penstock.observability.accounts import Accounts, failed
from penstock.observability.metrics import Outcome, outcome_of
from penstock.storage.batches import Batch, LineResult

# A step for batches computes at most BACKGROUND_TOKENS positions; a few more lines are at hand when some of them end.
LINES_AT_A_TIME = BACKGROUND_TOKENS + BACKGROUND_TOKENS // 2


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


class LineRunner:
    """Runs requests of batches on an engine."""

    at_a_time = LINES_AT_A_TIME

    def __init__(
        self, engine: EngineClient, job_endpoints: Mapping[str, JobEndpoint], keys: Keyring, accounts: Accounts
    ) -> None:
        self.job_endpoints = job_endpoints
        self._accounts = accounts
        self._engine = engine
        self._keys = keys
        # One of its own: those of other requests stay free, and the event loop too.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch-lines")

    @property
    def endpoints(self) -> Collection[str]:
        """Paths that a batch can ask for."""
        return self.job_endpoints.keys()

    def is_ready(self) -> bool:
        """Whether lines can run now."""
        try:
            self._engine.check_ready()
        except EngineUnavailable:
            return False
        return True

    def serves(self, batch: Batch) -> bool:
        """Whether the owner of a batch may still ask. A batch whose owner's key is gone waits until the key is back,
        unless tenants without keys ask through a gateway.
        """
        return self._keys.may_ask(batch.owner)

    async def run(self, line: InputLine, batch: Batch) -> LineResult:
        """The line's result, of whatever kind. Raises EngineUnavailable where it has to run again later."""
        endpoint, owner = batch.endpoint, batch.owner
        account = self._accounts.begin_line(self.job_endpoints[endpoint].name, owner)
        account.client_id = line.custom_id
        outcome: Outcome = "cancelled"
        try:
            status, body = 200, await self._answer(line, self.job_endpoints[endpoint], owner, account)
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
            self._accounts.end(account, outcome)
        output = answered_line(line.custom_id, account.id, status, body, account.ignored)
        return LineResult(line.number, status == 200, output)

    async def _answer(self, line: InputLine, endpoint: JobEndpoint, owner: str, account: Account) -> bytes:
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
        self._accounts.answered_as(account, writer.id)
        async with contextlib.aclosing(outputs_of(self._engine, job, account.follow)) as outputs:
            async for output in outputs:
                account.drop(output.deltas[0].index // (job.params[0].n if job.params else 1), output.dropped_tokens)
                account.finish_reasons += [each.finish_reason for each in output.deltas if each.finish_reason]
                writer.add(output)
                if writer.enough:
                    break
        return await loop.run_in_executor(self._thread, writer.body)


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
