"""A gateway over real sockets, in front of replicas that answer as a test says."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

import httpx
import pytest

from penstock.access.allowances import Allowances
from penstock.access.keys import Keyring
from penstock.assembly.gateway import Files
from penstock.gateway.answers import Answers
from penstock.gateway.app import create_gateway
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.members import Members
from penstock.gateway.options import FleetOptions, ReplicaOptions
from penstock.gateway.replicas import Replicas, State
from penstock.gateway.shared_answers import SharedAnswers
from penstock.gateway.tenants import Tenants
from penstock.observability.tracing import Tracing
from penstock.server.dialects import DIALECTS
from support.databases import database_url, postgres
from support.http_server import running
from support.scripted_http import Script, ScriptedServer, scripted
from support.waiting import PATIENCE, until

__all__ = ["database_url", "postgres"]


@dataclass
class Gateway:
    """A running gateway and its parts."""

    url: str
    http: httpx.Client
    servers: list[ScriptedServer]
    dispatch: Dispatch

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
        """Until nothing is counted as under way."""
        loads = self.dispatch.router.loads
        until(lambda: not any(loads.requests + loads.reading + loads.uncached + loads.context))


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
    there is a `database`, files and batches are kept there.
    """
    with contextlib.ExitStack() as stack:

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
            **options: object,
        ) -> Gateway:
            states = [*told, *([None] * len(scripts))]
            servers = [
                stack.enter_context(scripted(script, told=state))
                for script, state in zip(scripts, states, strict=False)
            ]
            urls = [*(server.base for server in servers), *unheard]
            replicas = tuple(ReplicaOptions(url=url, most_requests=most_requests) for url in urls)
            fleet = FleetOptions(replica=replicas, **{"policy": "round-robin", **options}).check()
            keyed = bool(keys) or tenants is not None
            dispatch = Dispatch(
                fleet,
                tracing=tracing,
                allowances=allowances,
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
                async with members.looked_after(), followed, watched, batches:
                    yield

            files = None if tenants is None or database is None else Files(database, tenants, dispatch)
            app = create_gateway(
                dispatch, DIALECTS, keys=keys, tenants=tenants, files=None if files is None else files.api
            )
            url = stack.enter_context(running(app, beside=beside))
            until(lambda: all(each.state != State.UNKNOWN for each in dispatch.replicas.all))
            http = stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE))
            return Gateway(url, http, servers, dispatch)

        yield start
