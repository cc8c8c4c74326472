"""Files and batches of a gateway with a database: it keeps them itself, and its lines go to replicas that have time."""

import asyncio
from collections.abc import Collection, Iterator, Mapping

from starlette.types import Message, Scope

from penstock.access.tenants import STATE, Tenant
from penstock.batches.input import InputLine
from penstock.batches.lines import LINES_AT_A_TIME, answered_line
from penstock.batches.runner import LineCounts
from penstock.batches.stored import StoredApi
from penstock.core.errors import InvalidParameter, RequestError
from penstock.gateway.asked import parse_asked
from penstock.gateway.headers import LINE
from penstock.gateway.relay import Relay
from penstock.gateway.replicas import State
from penstock.http.answers import IGNORED_HEADER
from penstock.http.error_bodies import error_body
from penstock.observability.request_ids import REQUEST_ID, new_request_id
from penstock.storage.batches import Batch, LineResult
from penstock.storage.quotas import TENANT_SHARE, StorageQuota
from penstock.storage.store import Store
from penstock.tenancy.directory import Directory

ENDPOINTS = frozenset(
    ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/classify")
)
# Whose batches servers leave to gateways.
RUNNER = "gateway"
_GOOD = 200
# Answers after which a line is sent again: it came at a bad time, or its replica broke; the latter is tried five times.
_BUSY, _BROKEN, _MOST_BROKEN = frozenset((429, 503)), frozenset((500, 502, 504)), 5
_FIRST_SECONDS, _LONGEST_SECONDS = 0.5, 30.0


class FleetLines:
    """Runs lines as requests of their tenants, behind all others (it is a `Lines` of `batches/lines.py`)."""

    endpoints: Collection[str] = ENDPOINTS

    def __init__(self, relay: Relay, directory: Directory) -> None:
        self._relay, self._replicas, self._directory = relay, relay.dispatch.replicas, directory

    @property
    def at_a_time(self) -> int:
        """The same number for each machine that is ready; where there are providers only, as for one machine."""
        ready = sum(each.state == State.READY for each in self._replicas.machines)
        only_providers = not self._replicas.machines and bool(self._replicas.there)
        return LINES_AT_A_TIME * max(ready, only_providers)

    def is_ready(self) -> bool:
        """Whether a replica is ready."""
        return self.at_a_time > 0

    def serves(self, batch: Batch) -> bool:
        """Whether the project of a batch, and its key, may still ask."""
        return self._directory.of_batch(batch.owner, batch.key) is not None

    async def run(self, line: InputLine, batch: Batch) -> LineResult:
        """The line's result, of whatever kind. It waits while its tenant has used its limits, or no replica is free."""
        broken, seconds = 0, _FIRST_SECONDS
        while True:
            request_id = new_request_id()
            # Each line has a task of its own, and so an id.
            REQUEST_ID.set(request_id)
            status, body, ignored = await self._ask(line, batch)
            broken += status in _BROKEN
            if status not in _BUSY and (status not in _BROKEN or broken >= _MOST_BROKEN):
                output = answered_line(line.custom_id, request_id, status, body, ignored)
                return LineResult(line.number, status == _GOOD, output)
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _LONGEST_SECONDS)

    async def _ask(self, line: InputLine, batch: Batch) -> tuple[int, bytes, list[str]]:
        """Status and body of the answer to a line, and the fields that had no effect."""
        tenant = self._directory.of_batch(batch.owner, batch.key)
        if tenant is None:
            # The batch is left as soon as that is seen.
            return next(iter(_BUSY)), b"", []
        try:
            _check(line.body)
        except RequestError as error:
            return error.http_status, error_body(error), []
        answer = _Answer(line.body)
        await self._relay(_scope(batch.endpoint, tenant), answer.receive, answer.send)
        return answer.status, bytes(answer.body), answer.ignored


def _check(body: bytes) -> None:
    """Raises RequestError for a line that asks for what a batch has not."""
    asked = parse_asked(body)
    if asked.stream:
        raise InvalidParameter("stream", "a batch has no streams; leave it out.")
    if asked.timeout is not None:
        raise InvalidParameter("timeout", "a batch has a completion window of its own; leave it out.")


def _scope(path: str, tenant: Tenant) -> Scope:
    """A request as the gateway's server would have it, for a line."""
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "state": {STATE: tenant, LINE: True},
    }


class _Answer:
    """A client that sends one body, and reads its answer to the end."""

    def __init__(self, body: bytes) -> None:
        self.status, self.body = 0, bytearray()
        self.ignored: list[str] = []
        self._asked: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive(self) -> Message:
        if not self._asked:
            await asyncio.Event().wait()
        return self._asked.pop()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            names = [value for name, value in message["headers"] if name == IGNORED_HEADER.encode()]
            self.ignored = [each.strip() for value in names for each in value.decode("latin-1").split(",")]
        else:
            self.body += message.get("body", b"")


class _OwnBytes(Mapping[str, int]):
    """What projects may keep, of those that have a bound of their own, as the directory says now."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def __getitem__(self, project: str) -> int:
        tenant = self._directory.tenant(project)
        if tenant is None or tenant.max_stored_bytes is None:
            raise KeyError(project)
        return tenant.max_stored_bytes

    def __iter__(self) -> Iterator[str]:
        return (each for each in self._directory.projects if each in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def fleet_store(database: str, directory: Directory) -> Store:
    """What a gateway keeps for the projects of a directory, in its database. Raises ConfigurationError."""
    limits = StorageQuota(tenant_share=TENANT_SHARE, tenant_bytes=_OwnBytes(directory))
    return Store.share(database, RUNNER, limits)


def fleet_batches(store: Store, relay: Relay, directory: Directory, counts: LineCounts) -> StoredApi:
    """The endpoints of files and batches of a gateway, and what runs these."""
    return StoredApi(store, "", FleetLines(relay, directory), counts)
