"""What a replica tells gateways of itself."""

import asyncio
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from penstock.core.events import LoadSnapshot
from penstock.core.facts import StepFacts
from penstock.http.drain import Deadline, Drain
from penstock.routing.told import ReplicaState
from penstock.server.app import create_app
from penstock.server.dialects import DIALECTS
from penstock.server.paths import LAST_PATHS
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.simulated_loop import simulate
from support.waiting import PATIENCE
from support.world_http import Exchange

LINES = {"accept": "application/x-ndjson"}


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(None, [5, 6], aliases=("another",))


@pytest.fixture
def states(engine: ScriptedEngine) -> Iterator[Iterator[ReplicaState]]:
    with (
        running(create_app(engine, None)) as url,
        httpx.Client(base_url=url, timeout=PATIENCE) as http,
        http.stream("GET", "/v1/replica", headers=LINES) as response,
    ):
        assert response.headers["content-type"] == "application/x-ndjson"
        yield (msgspec.json.decode(line, type=ReplicaState) for line in response.iter_lines())


def test_what_is_new_is_told_and_what_is_not_again_and_again(
    engine: ScriptedEngine, states: Iterator[ReplicaState]
) -> None:
    first = next(states)
    assert first.models == ("scripted", "another") and not first.why and first.speed is None
    assert (first.running, first.waiting, first.blocks_total, first.blocks_used) == (2, 3, 100, 40)
    again = next(states)
    assert again == msgspec.structs.replace(first, at=again.at) and again.at > first.at
    engine.load = LoadSnapshot(running=5, waiting=7, waiting_tokens=900)
    newer = next(state for state in states if state.running == 5)
    assert (newer.waiting, newer.waiting_tokens, newer.instance) == (7, 900, first.instance)


def test_why_it_cannot_answer(engine: ScriptedEngine, states: Iterator[ReplicaState]) -> None:
    engine.unavailable = "The engine has failed."
    assert next(state for state in states if state.why).why == "The engine has failed."
    engine.unavailable = None
    assert next(state for state in states if not state.why).models == ("scripted", "another")


def test_how_fast_it_is(engine: ScriptedEngine, states: Iterator[ReplicaState]) -> None:
    for rows in (1, 2, 4, 8) * 100:
        engine.observers[-1](StepFacts(execute=0.01 + 0.001 * (rows - 1), rows=rows, decodes=rows))
    for _ in range(200):
        engine.observers[-1](StepFacts(execute=0.111, rows=3, decodes=2, chunk_tokens=1000))
    speed = next(state for state in states if state.speed is not None).speed
    assert speed is not None
    assert speed.prefill == pytest.approx(10_000, rel=0.01)
    assert speed.decode == pytest.approx(0.01, rel=0.05) and speed.row == pytest.approx(0.001, rel=0.05)


def test_the_last_state_says_that_it_is_the_last(engine: ScriptedEngine) -> None:
    """And does not keep the server from its end."""

    async def main() -> None:
        drain = Drain(create_app(engine, None), DIALECTS, LAST_PATHS)
        exchange = Exchange(drain, "GET", "/v1/replica", b"", headers=LINES)
        await asyncio.sleep(0.05)
        await drain.finish(Deadline.after(30))
        assert asyncio.get_running_loop().time() < 1
        await exchange.read()
        first, *_, last = (msgspec.json.decode(line, type=ReplicaState) for line in exchange.body.splitlines())
        assert last.ending and not first.ending
        late = Exchange(drain, "GET", "/v1/replica", b"", headers=LINES)
        await late.read()
        [only] = late.body.splitlines()
        assert msgspec.json.decode(only, type=ReplicaState).ending

    simulate(main())


def test_the_state_once(engine: ScriptedEngine) -> None:
    with running(create_app(engine, None)) as url:
        response = httpx.get(url + "/v1/replica", timeout=PATIENCE)
    state = msgspec.json.decode(response.content, type=ReplicaState)
    assert response.headers["content-type"] == "application/json" and (state.running, state.waiting) == (2, 3)
