"""The orderly end of a server, for requests that have only half arrived."""

import asyncio
import json
import math

import pytest

from penstock.http.drain import Deadline, Drain
from penstock.server.app import create_app
from penstock.server.dialects import DIALECTS
from penstock.server.paths import LAST_PATHS
from support.scripted_engine import ScriptedEngine
from support.simulated_loop import simulate
from support.world_http import Exchange

BODY = json.dumps({"prompt": [1, 2], "max_tokens": 4}).encode()


def test_a_deadline_only_comes_nearer() -> None:
    async def main() -> None:
        deadline = Deadline()
        assert deadline.left == math.inf and deadline.within(5.0) and deadline.left == 5.0
        assert not deadline.within(6.0) and deadline.left == 5.0
        assert deadline.within(2.0) and deadline.left == 2.0
        await asyncio.sleep(3.0)
        assert deadline.left == 0.0

    simulate(main())


@pytest.mark.parametrize("seconds", [0.1, 5.0])
def test_a_request_whose_body_arrives_when_time_is_over_is_told(seconds: float) -> None:
    async def main() -> None:
        engine = ScriptedEngine(None, [5, 6, 7])
        drain = Drain(create_app(engine, None), DIALECTS, LAST_PATHS)
        exchange = Exchange(drain, "POST", "/v1/completions", BODY, parts=(0.0, 1.0))
        await asyncio.sleep(0.5)
        ending = asyncio.ensure_future(drain.finish(Deadline.after(seconds)))
        await asyncio.sleep(0.01)
        late = Exchange(drain, "POST", "/v1/completions", BODY)
        await exchange.read()
        await late.read()
        await ending
        assert drain.requests == 0
        assert late.status == 503 and json.loads(late.body)["error"]["code"] == "server_stopping"
        if seconds < 0.5:
            assert exchange.status == 503 and json.loads(exchange.body)["error"]["code"] == "server_stopping"
            assert not engine.calls
        else:
            assert exchange.status == 200

    simulate(main())


def test_figures_are_told_to_the_end_and_say_that_it_has_begun() -> None:
    async def main() -> None:
        engine = ScriptedEngine(None, [5, 6, 7])
        gate = asyncio.Event()
        engine.before = lambda call: gate.wait()
        drain = Drain(create_app(engine, None), DIALECTS, LAST_PATHS)
        exchange = Exchange(drain, "POST", "/v1/completions", BODY)
        told = []
        for ending in (False, True):
            await asyncio.sleep(0.1)
            end = asyncio.ensure_future(drain.finish(Deadline.after(5))) if ending else None
            await asyncio.sleep(0.01)
            stats = Exchange(drain, "GET", "/v1/stats", b"")
            metrics = Exchange(drain, "GET", "/metrics", b"")
            await stats.read()
            await metrics.read()
            told.append((json.loads(stats.body), metrics.body.decode()))
        gate.set()
        await exchange.read()
        assert end is not None
        await end
        (before, ready), (after, not_ready) = told
        assert before["ready"] and before["why_not"] is None and "\npenstock_ready 1" in ready
        assert not after["ready"] and "stopping" in after["why_not"] and "\npenstock_ready 0" in not_ready
        assert after["now"]["in_flight"] == 1

    simulate(main())


def test_where_another_takes_its_place_each_connection_is_closed_behind_an_answer() -> None:
    async def main() -> None:
        drain = Drain(create_app(ScriptedEngine(None, [5, 6, 7]), None), DIALECTS, LAST_PATHS)
        closing = []
        for handed_over in (False, True):
            if handed_over:
                drain.hand_over()
            exchange = Exchange(drain, "POST", "/v1/completions", BODY)
            await exchange.read()
            assert exchange.status == 200
            closing.append(exchange.headers.get("connection"))
        assert closing == [None, "close"]

    simulate(main())
