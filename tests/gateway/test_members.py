"""Replicas join, are found by their names, leave, and are gone where they are not heard of."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
import pytest

from penstock.access.tenants import Tenant
from penstock.core.errors import ConfigurationError
from penstock.gateway import members as module
from penstock.gateway.app import create_gateway
from penstock.gateway.asked import Asked
from penstock.gateway.dispatch import Dispatch
from penstock.gateway.join import JoinApi
from penstock.gateway.joining import PATH, joined
from penstock.gateway.members import Members
from penstock.gateway.options import FleetOptions, HoldOptions, JoinOptions, ReplicaOptions, fleet_of
from penstock.gateway.pool import Address, Pool, address_of
from penstock.gateway.replicas import State
from penstock.server.dialects import DIALECTS
from support.http_server import running
from support.scripted_http import scripted, whole_answer
from support.simulated_loop import simulate
from support.waiting import PATIENCE, reached, until

TOKEN = {"authorization": "Bearer right"}


class Silent(Pool):
    """Connects to nothing."""

    async def _connect(self) -> Any:
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def members(**options: Any) -> AsyncIterator[tuple[Members, Dispatch]]:
    fleet = FleetOptions(**options)
    dispatch = Dispatch(fleet)
    found = Members(dispatch, fleet, Silent)
    async with found.looked_after():
        yield found, dispatch


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    simulate(test())


def test_who_does_not_say_that_it_is_there_is_gone_and_may_come_back() -> None:
    async def test() -> None:
        async with members(join=JoinOptions(lease=6.0)) as (found, dispatch):
            assert found.join("http://10.0.0.1:8000") == 6.0
            [replica] = dispatch.replicas.all
            for _ in range(5):
                await asyncio.sleep(3)
                found.join("http://10.0.0.1:8000/")
            assert dispatch.replicas.there == [replica]
            await asyncio.sleep(7)
            assert replica.state == State.GONE and "has not said for 6 s" in replica.why
            assert dispatch.replicas.there == [] and not dispatch.fleet().replicas
            found.join("http://10.0.0.1:8000")
            assert dispatch.replicas.there == [replica] == dispatch.replicas.all and replica.state == State.UNKNOWN
            found.leave("http://10.0.0.1:8000")
            assert replica.state == State.GONE
            # Who is not there cannot leave.
            found.leave("http://10.0.0.9:8000")

    run(test)


def test_one_that_is_listed_stays() -> None:
    async def test() -> None:
        listed = ReplicaOptions(url="http://10.0.0.1:8000")
        async with members(replica=(listed,), join=JoinOptions(lease=2.0)) as (found, dispatch):
            found.join(listed.url)
            found.leave(listed.url)
            await asyncio.sleep(9)
            [replica] = dispatch.replicas.there
            assert replica.state != State.GONE

    run(test)


def test_each_address_behind_a_name_is_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    behind: list[str] | OSError = ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]

    async def resolved(address: Address) -> set[str]:
        assert address.host == "replicas.example"
        if isinstance(behind, OSError):
            raise behind
        return set(behind)

    async def test() -> None:
        nonlocal behind
        asked = ReplicaOptions(url="http://replicas.example:8000", dns=True, most_requests=3)
        async with members(replica=(asked,)) as (_, dispatch):
            await asyncio.sleep(1)
            assert [each.name for each in dispatch.replicas.there] == behind
            assert dispatch.router.loads.most == [3, 3]
            behind = OSError("no answer")
            await asyncio.sleep(10)
            assert len(dispatch.replicas.there) == 2
            behind = ["http://10.0.0.2:8000", "http://10.0.0.3:8000"]
            await asyncio.sleep(10)
            assert [each.name for each in dispatch.replicas.there] == behind
            behind = ["http://10.0.0.1:8000"]
            await asyncio.sleep(10)
            assert [each.name for each in dispatch.replicas.there] == behind and len(dispatch.replicas.all) == 3

    monkeypatch.setattr(module, "_resolved", resolved)
    run(test)


def test_a_name_is_resolved() -> None:
    found = asyncio.run(module._resolved(address_of("http://localhost:8000/llm")))
    assert "http://127.0.0.1:8000/llm" in found


@contextlib.contextmanager
def gateway(token: str | None) -> Any:
    fleet = FleetOptions(hold=HoldOptions(seconds=0), join=JoinOptions(lease=60.0))
    dispatch = Dispatch(fleet)
    found = Members(dispatch, fleet)
    app = create_gateway(dispatch, DIALECTS, join=JoinApi(found, token))
    with running(app, beside=found.looked_after) as url, httpx.Client(base_url=url, timeout=PATIENCE) as http:
        yield http, dispatch


def test_a_replica_joins_answers_and_leaves() -> None:
    with gateway("right") as (http, dispatch), scripted(whole_answer) as server:
        refused = http.post("/v1/completions", json={"model": "scripted", "prompt": "the fox", "max_tokens": 2})
        assert refused.status_code == 503 and "none has joined" in refused.json()["error"]["message"]

        async def serve() -> None:
            own = address_of(server.base)._replace(host="0.0.0.0")
            async with joined([str(http.base_url)], own, "right"):
                await reached(lambda: dispatch.replicas.models)
                answer = await asyncio.to_thread(
                    http.post, "/v1/completions", json={"model": "scripted", "prompt": "the fox", "max_tokens": 2}
                )
                assert answer.status_code == 200
                # It says the address that leads to the gateway.
                assert [each.name for each in dispatch.replicas.there] == [server.base]
                # Who looks after the replicas sees them, and what they have to do. What was refused before named a
                # model that nothing had told of.
                seen = (await asyncio.to_thread(http.get, PATH, headers=TOKEN)).json()
                assert [(each["url"], each["state"]) for each in seen["replicas"]] == [(server.base, "ready")]
                assert [(each["model"], each["counted"]["requests"]) for each in seen["demands"]] == [("scripted", 1)]

        asyncio.run(serve())
        until(lambda: not dispatch.replicas.there)


@pytest.mark.parametrize(
    ("token", "headers", "body", "status", "said"),
    [
        (None, TOKEN, {"url": "http://10.0.0.1"}, 403, "was started without PENSTOCK_JOIN_TOKEN"),
        ("right", {}, {"url": "http://10.0.0.1"}, 403, "needs the token that the gateway has"),
        ("right", {"authorization": "Bearer wrong"}, {"url": "http://10.0.0.1"}, 403, "needs the token"),
        ("right", TOKEN, {"url": "10.0.0.1"}, 400, "'10.0.0.1' is no URL of a replica"),
        ("right", TOKEN, {"url": "http://10.0.0.1", "more": 1}, 400, "unknown field `more`"),
        ("right", TOKEN, {"url": "http://" + "x" * 5000}, 413, "4096"),
    ],
)
def test_who_may_not_join(token: str | None, headers: dict[str, str], body: Any, status: int, said: str) -> None:
    with gateway(token) as (http, dispatch):
        for method in ("POST", "DELETE"):
            answer = http.request(method, PATH, headers=headers, json=body)
            assert answer.status_code == status and said in answer.json()["error"]["message"], answer.text
        if status == 403:
            assert http.get(PATH, headers=headers).status_code == 403
        assert not dispatch.replicas.all


def test_without_replicas_there_has_to_be_a_token() -> None:
    with pytest.raises(ConfigurationError, match="or let them join, with a token in PENSTOCK_JOIN_TOKEN"):
        fleet_of(None, (), None)
    assert fleet_of(None, (), None, joinable=True).replica == ()
    with pytest.raises(ConfigurationError, match="dns = true, which goes with http://"):
        FleetOptions(replica=(ReplicaOptions(url="https://a", dns=True),)).check()


def test_the_place_of_one_that_is_gone_is_anothers() -> None:
    """So that a fleet whose replicas come and go at ever new addresses does not grow."""

    async def test() -> None:
        async with members(join=JoinOptions(lease=60.0)) as (found, dispatch):
            found.join("http://10.0.0.1:8000")
            first = dispatch.replicas.all[0]
            first.is_ready(["m"])
            wanted = await dispatch.read(Asked(model="m"), "/v1/completions", b"{}", None, Tenant())
            attempt = await dispatch.first(wanted)
            found.leave("http://10.0.0.1:8000")
            # Something is under way there.
            found.join("http://10.0.0.2:8000")
            assert [each.place for each in dispatch.replicas.there] == [1]
            attempt.failed()
            attempt.over()
            dispatch.end(wanted, None)
            found.join("http://10.0.0.3:8000")
            third = dispatch.replicas.all[0]
            assert third.name == "http://10.0.0.3:8000" and len(dispatch.replicas.all) == 2
            third.is_ready(["m"])
            wanted = await dispatch.read(Asked(model="m"), "/v1/completions", b"{}", None, Tenant())
            attempt = await dispatch.first(wanted)
            assert attempt.replica is third and dispatch.fleet().replicas[0].sent == 1
            attempt.over()
            dispatch.end(wanted, None)
            # The first one comes back in another place.
            found.join("http://10.0.0.1:8000")
            assert [each.name[-6:-5] for each in dispatch.replicas.all] == ["3", "2", "1"]

    run(test)


def test_one_that_has_joined_stays_while_its_name_leads_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolved(address: Address) -> set[str]:
        return {"http://10.0.0.1:8000"}

    async def test() -> None:
        asked = ReplicaOptions(url="http://replicas.example:8000", dns=True)
        async with members(replica=(asked,), join=JoinOptions(lease=2.0)) as (found, dispatch):
            found.join("http://10.0.0.1:8000")
            await asyncio.sleep(30)
            assert [each.name for each in dispatch.replicas.there] == ["http://10.0.0.1:8000"]

    monkeypatch.setattr(module, "_resolved", resolved)
    run(test)
