"""A gateway over real sockets, in front of replicas that answer as a test says, and with tenants in a database."""

import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.access.allowances import Allowances, OwnAllowances
from penstock.access.keys import Keyring
from penstock.assembly.gateway import Files
from penstock.assembly.picking import picker
from penstock.batches import runner
from penstock.database.connection import Database
from penstock.gateway import dispatch as dispatching
from penstock.gateway import watch
from penstock.gateway.answers import Answers
from penstock.gateway.app import create_gateway
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.members import Members
from penstock.gateway.options import FleetOptions, HoldOptions, ReplicaOptions, Timeouts
from penstock.gateway.replicas import Replicas, State
from penstock.gateway.shared_answers import SharedAnswers
from penstock.gateway.tenants import Tenants
from penstock.metering.prices import Price
from penstock.observability.tracing import Tracing
from penstock.server.dialects import DIALECTS
from penstock.tenancy import following, ledger
from penstock.tenancy.oidc import Issuer
from penstock.tenancy.registry import Registry
from penstock.tenancy.settings import Settings, changed
from support.databases import database_url, postgres
from support.http_server import running
from support.scripted_http import Script, ScriptedServer, answer, scripted
from support.waiting import PATIENCE, until

__all__ = ["database_url", "postgres"]

# 7 tokens at 1 and 5 at 2 for a million: 17 millionths a request.
ANSWER = json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}).encode()
PRICE = Price(model="scripted", input=Decimal(1), output=Decimal(2))
COST = Decimal("0.000017")
_DAY_SECONDS = 86400
# However slow the machine is, replicas stay as they are, and a request waits for one to come.
PATIENT: dict[str, Any] = {
    "policy": "round-robin",
    "timeouts": Timeouts(connect=PATIENCE, silence=PATIENCE),
    "hold": HoldOptions(seconds=PATIENCE),
}


@dataclass
class Gateway:
    """A running gateway and its parts; `picks_at` is the port where Envoy asks."""

    url: str
    http: httpx.Client
    servers: list[ScriptedServer]
    dispatch: Dispatch
    picks_at: int = 0

    @property
    def replicas(self) -> Replicas:
        """What is known of them."""
        return self.dispatch.replicas

    def complete(self, **fields: object) -> httpx.Response:
        """Ask for a completion; where one replica is as good as another, they take turns."""
        return self.http.post("/v1/completions", json={"model": "scripted", "prompt": "the fox", **fields})

    @property
    def asked(self) -> list[int]:
        """How many requests each replica got."""
        return [len(server.asked) for server in self.servers]

    def wait_until_empty(self) -> None:
        """Until nothing is counted as under way, and it is noted what became of each request."""
        loads, ways = self.dispatch.router.loads, self.dispatch.ways
        until(lambda: not any(loads.requests + loads.reading + loads.uncached + loads.context))
        until(lambda: all(way.outcome is not None for way in list(ways._ways.values())))


Start = Callable[..., Gateway]


@pytest.fixture
def gateway() -> Iterator[Start]:
    """Starts one in front of a replica for each script."""
    with gateways() as start:
        yield start


@contextlib.contextmanager
def gateways() -> Iterator[Start]:
    """Gateways that run until the block ends.

    `told` is what the first of their replicas tell of themselves; `unheard` are addresses where nothing listens. Where
    there is a `database`, files and batches are kept there; where it `picks`, Envoy can ask it.
    """
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        # Else what waits until changes in a database are learned, or what was used is in it, waits for half a second,
        # and what waits for a batch that another has left for five.
        patch.setattr(following, "_LOOK_SECONDS", 0.05)
        patch.setattr(ledger, "_FLUSH_SECONDS", 0.05)
        patch.setattr(runner, "_LOOK_SECONDS", 0.1)
        patch.setattr(watch, "ANSWER_SECONDS", PATIENCE)

        def start(
            *scripts: Script,
            unheard: tuple[str, ...] = (),
            told: Sequence[Script] = (),
            tracing: Tracing | None = None,
            keys: Keyring | None = None,
            allowances: Allowances | None = None,
            tenants: Tenants | None = None,
            most_requests: int | None = None,
            answers: Answers | None = None,
            database: str | None = None,
            picks: bool = False,
            **options: object,
        ) -> Gateway:
            states = [*told, *([None] * len(scripts))]
            servers = [
                stack.enter_context(scripted(script, told=state))
                for script, state in zip(scripts, states, strict=False)
            ]
            urls = [*(server.base for server in servers), *unheard]
            replicas = tuple(ReplicaOptions(url=url, most_requests=most_requests) for url in urls)
            fleet = FleetOptions(replica=replicas, **{**PATIENT, **options}).check()
            keyed = bool(keys) or tenants is not None
            # No minute of limits ends while the gateway runs.
            began = time.time()
            dispatch = Dispatch(
                fleet,
                tracing=tracing,
                allowances=allowances or OwnAllowances(lambda: began),
                ledger=tenants,
                answers=answers,
                keyed=keyed,
                first=0,
            )
            members = Members(dispatch, fleet)

            @contextlib.asynccontextmanager
            async def beside() -> AsyncIterator[None]:
                followed = contextlib.nullcontext() if tenants is None else tenants.watched(dispatch)
                watched = answers.watched() if isinstance(answers, SharedAnswers) else contextlib.nullcontext()
                batches = contextlib.nullcontext() if files is None else files.running()
                picked = picker(dispatch, "127.0.0.1", 0, 0.0) if picks else contextlib.nullcontext(0)
                async with members.looked_after(), followed, watched, batches, picked as port:
                    ports.append(port)
                    yield

            ports: list[int] = []

            files = None if tenants is None or database is None else Files(database, tenants, dispatch)
            app = create_gateway(
                dispatch, DIALECTS, keys=keys, tenants=tenants, files=None if files is None else files.api
            )
            url = stack.enter_context(running(app, beside=beside))
            until(lambda: all(each.state != State.UNKNOWN for each in dispatch.replicas.all))
            http = stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE))
            return Gateway(url, http, servers, dispatch, ports[0])

        yield start


class World:
    """A database of tenants, and gateways that follow it."""

    def __init__(self, start: Start, url: str, folder: Path) -> None:
        wait_for_a_day()
        self.url, self.database = url, Database.open(url)
        self.database.upgrade()
        self.registry = Registry(self.database)
        self.registry.create_organisation("test", "acme", Settings())
        self.registry.create_project("test", "acme.web", Settings())
        self._start, self._folder, self._gateways = start, folder, itertools.count()

    def gateway(
        self, script: Script = lambda _request: answer(ANSWER), issuer: Issuer | None = None, **options: Any
    ) -> Gateway:
        """One more, with a journal of its own."""
        tenants = Tenants(Database.open(self.url), self._folder / f"journal-{next(self._gateways)}", issuer)
        return self._start(script, tenants=tenants, **{"price": (PRICE,), **options})

    def key(self, project: str | None = "acme.web", role: Any = "member", **fields: Any) -> tuple[str, str]:
        """The id of a new key, and the key."""
        key, secret = self.registry.create_key("test", "k", project, changed(Settings(), fields), role=role)
        return key.id, secret


@pytest.fixture
def world(gateway: Start, database_url: str, tmp_path: Path) -> Iterator[World]:
    made = World(gateway, database_url, tmp_path)
    yield made
    made.database.close()


def ask(gateway: Gateway, secret: str, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
    body = {"model": "scripted", "prompt": "the fox", **fields}
    return gateway.http.post(path, json=body, headers=bearer(secret))


def chat(gateway: Gateway, secret: str, **fields: Any) -> httpx.Response:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}], **fields}
    return gateway.http.post("/v1/chat/completions", json=body, headers=bearer(secret))


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def knows(gateway: Gateway, secret: str) -> None:
    """Wait until a key is taken: a gateway looks at the database now and then."""
    until(lambda: gateway.http.get("/v1/models", headers=bearer(secret)).status_code == 200)


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time in which replicas are left out, and retries come back, does not pass, however slow the machine is."""
    now = time.monotonic()
    monkeypatch.setattr(dispatching, "_now", lambda: now)


def wait_for_a_day() -> None:
    """Until the day, in UTC, does not end while a test runs: budgets and statements are those of days and months."""
    left = _DAY_SECONDS - time.time() % _DAY_SECONDS
    if left < PATIENCE:
        time.sleep(left + 1)


def month() -> str:
    """The one that it is."""
    return datetime.now(UTC).strftime("%Y-%m")
