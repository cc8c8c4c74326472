"""One line of a batch: the way that a request over HTTP takes, without the HTTP, and behind all such requests."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec
from msgspec.structs import replace

from penstock.access.keys import Keyring
from penstock.access.tenants import Tenant
from penstock.api.generation import outputs_of
from penstock.api.job import Job
from penstock.api.job_endpoint import JobEndpoint
from penstock.api.records import begun
from penstock.batches.input import InputLine
from penstock.core.errors import EngineUnavailable, InvalidParameter
from penstock.core.request import BACKGROUND_PRIORITY
from penstock.engine.interface import EngineClient
from penstock.http.error_bodies import error_body
from penstock.http.errors import as_penstock_error
from penstock.observability.account import Account, working
from penstock.observability.accounts import Accounts, failed
from penstock.observability.metrics import Outcome, outcome_of
from penstock.storage.batches import LineResult


class LineRunner:
    """Runs requests of batches on an engine."""

    def __init__(
        self, engine: EngineClient, job_endpoints: Mapping[str, JobEndpoint], keys: Keyring, accounts: Accounts
    ) -> None:
        self.job_endpoints = job_endpoints
        self._accounts = accounts
        self._engine = engine
        self._keys = keys
        # One of its own: those of other requests stay free, and the event loop too.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch-lines")

    def is_ready(self) -> bool:
        """Whether lines can run now."""
        try:
            self._engine.check_ready()
        except EngineUnavailable:
            return False
        return True

    def serves(self, owner: str) -> bool:
        """Whether the owner of a batch may still ask. A batch whose owner's key is gone waits until the key is back,
        unless tenants without keys ask through a gateway.
        """
        return self._keys.may_ask(owner)

    async def run(self, line: InputLine, endpoint: str, owner: str) -> LineResult:
        """The line's result, of whatever kind. Raises EngineUnavailable where it has to run again later."""
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
        return LineResult(line.number, status == 200, _response_line(account, line.custom_id, status, body))

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
        # Priorities that lines ask for order them among themselves.
        standing = replace(job.standing, priority=BACKGROUND_PRIORITY + 2**31 + job.standing.priority)
        job = replace(job, standing=standing)
        writer = endpoint.writer(job)
        begun(account, job)
        self._accounts.answered_as(account, writer.id)
        async with contextlib.aclosing(outputs_of(self._engine, job, account.follow)) as outputs:
            async for output in outputs:
                account.finish_reasons += [each.finish_reason for each in output.deltas if each.finish_reason]
                writer.add(output)
                if writer.enough:
                    break
        return await loop.run_in_executor(self._thread, writer.body)


def unanswered_line(custom_id: str, code: str, message: str) -> bytes:
    """The line of the error file for a request that was not run."""
    fields = {"id": _id(), "custom_id": custom_id, "response": None, "error": {"code": code, "message": message}}
    return msgspec.json.encode(fields) + b"\n"


def _response_line(account: Account, custom_id: str, status: int, body: bytes) -> bytes:
    response: dict[str, object] = {"status_code": status, "request_id": account.id}
    if account.ignored:
        # What is a header of a response over HTTP.
        response["ignored"] = list(account.ignored)
    response["body"] = msgspec.Raw(body)
    return msgspec.json.encode({"id": _id(), "custom_id": custom_id, "response": response, "error": None}) + b"\n"


def _id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
