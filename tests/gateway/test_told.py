"""What replicas tell of themselves decides what they are sent."""

import json
import threading
import time
from collections.abc import Iterable

import pytest

from gateway.conftest import Start
from penstock.gateway.options import HoldOptions, Timeouts
from penstock.gateway.replicas import State
from penstock.routing.speed import Speed
from support.scripted_http import Received, Script, Step, answer, stream, whole_answer
from support.waiting import PATIENCE, until


def line(**fields: object) -> bytes:
    return json.dumps({"at": time.time(), "instance": "one", "models": ["told", "alias"], **fields}).encode() + b"\n"


def telling(*steps: Step) -> Script:
    """States, and then nothing, on a connection that stays open."""
    return lambda _request: stream(*steps, lambda: False, kind="application/x-ndjson")


def again_and_again(states: Iterable[bytes]) -> Script:
    def told(_request: Received) -> list[Step]:
        return [*stream(kind="application/x-ndjson")[:1], *(part for state in states for part in (framed(state), 0.1))]

    return told


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def test_what_a_replica_tells_is_what_is_known_of_it(gateway: Start) -> None:
    speed = {"prefill": 100.0, "decode": 0.5, "row": 0.1}
    started = gateway(
        whole_answer, told=[telling(line(running=3, waiting=2, waiting_tokens=70, speed=speed, max_model_len=512))]
    )
    [replica] = started.replicas.all
    until(lambda: replica.told is not None)
    told, alias = started.http.get("/v1/models").json()["data"]
    assert (told["id"], told["root"], told["max_model_len"]) == ("told", "told", 512)
    assert (alias["id"], alias["root"], alias["max_model_len"]) == ("alias", "told", 512)
    router = started.dispatch.router
    assert (router.loads.requests, router.loads.reading, router.loads.uncached) == ([5], [2], [70])
    assert router._speeds == [Speed(100.0, 0.5, 0.1)]


def test_one_that_says_nothing_for_too_long_is_the_last_to_be_asked(gateway: Start) -> None:
    states = [telling(line(models=["scripted"]))]
    started = gateway(whole_answer, whole_answer, told=states, timeouts=Timeouts(connect=PATIENCE, silence=0.1))
    silent = started.replicas.all[0]
    until(lambda: silent.state == State.STALE)
    for _ in range(4):
        assert started.complete(max_tokens=1).status_code == 200
    assert started.asked == [0, 4]
    # Where no other is left, it is asked.
    started.replicas.all[1].is_not(State.UNREADY, "it is gone")
    assert started.complete(max_tokens=1).status_code == 200
    assert started.asked[0] == 1


def test_one_that_is_stopping_or_loading_is_asked_nothing(gateway: Start) -> None:
    started = gateway(
        whole_answer,
        whole_answer,
        whole_answer,
        told=[telling(line(models=["scripted"], ending=True)), telling(line(why="The engine loads."))],
    )
    until(lambda: [each.state for each in started.replicas.all] == [State.DRAINING, State.UNREADY, State.READY])
    assert started.replicas.all[1].why == "The engine loads"
    for _ in range(4):
        assert started.complete(max_tokens=1).status_code == 200
    assert started.asked == [0, 0, 4]


def test_what_cannot_be_read_is_said(gateway: Start) -> None:
    started = gateway(
        whole_answer,
        whole_answer,
        whole_answer,
        told=[telling(b"{\n"), telling(b"x" * 70_000), lambda _request: answer(b"{}", 401)],
    )
    whys = ["what it says of itself cannot be read", "a state of it is longer than", "does not take the gateway's key"]
    until(lambda: all(why in each.why for each, why in zip(started.replicas.all, whys, strict=True)))


def test_a_request_waits_until_a_replica_is_ready(gateway: Start) -> None:
    ready = [False]
    started = gateway(
        whole_answer,
        told=[lambda _request: stream(line(why="It loads."), lambda: ready[0], line(models=["scripted"]), lambda: False,
                                      kind="application/x-ndjson")],
    )  # fmt: skip
    until(lambda: started.replicas.all[0].state == State.UNREADY)

    def make_ready() -> bool:
        ready[0] = started.dispatch.hold.waiting == 1
        return ready[0]

    import threading

    thread = threading.Thread(target=lambda: until(make_ready))
    thread.start()
    assert started.complete(max_tokens=1).status_code == 200
    thread.join()
    assert started.dispatch.hold.waiting == 0


def test_only_so_long_and_only_that_many(gateway: Start) -> None:
    loading = telling(line(why="It loads."))
    started = gateway(whole_answer, told=[loading], hold=HoldOptions(seconds=0.2))
    response = started.complete(max_tokens=1)
    assert response.status_code == 503
    assert response.json()["error"]["message"].endswith("since It loads, after a wait of 0.2 s; try again later.")
    started = gateway(whole_answer, told=[loading], hold=HoldOptions(requests=0))
    assert "0 requests wait already" in started.complete(max_tokens=1).json()["error"]["message"]


def test_a_model_of_the_same_name_that_is_another_is_told_of(gateway: Start, caplog: pytest.LogCaptureFixture) -> None:
    lines = [line(identity="one"), line(identity="one"), line(identity="two"), line(models=["another"], identity="3")]
    started = gateway(*[whole_answer] * 4, told=[telling(each) for each in lines])
    until(lambda: all(each.state == State.READY and each.told for each in started.replicas.all))
    kinds, names = ("one", "one", "two", "3"), [each.name for each in started.replicas.all]
    told = {each["place"]: each["unlike"] for each in started.http.get("/v1/fleet").json()["replicas"]}
    unlike = {place: names.index(name) for place, name in told.items() if name is not None}
    # Who came later is told apart from who was there.
    assert unlike and 3 not in unlike and all(kinds[place] != kinds[other] for place, other in unlike.items())
    assert "streams do not go on between them" in caplog.text


def test_the_first_that_is_ready_does_not_get_all_that_wait(gateway: Start) -> None:
    goes = {"ready": False, "answers": False}
    loading, ready = line(models=["scripted"], why="The engine loads."), line(models=["scripted"], most_running=1)

    def slow(_request: Received) -> list[Step]:
        return [lambda: goes["answers"], *answer(b"{}")]

    states = [framed(loading), lambda: goes["ready"], framed(ready), lambda: False]
    head = stream(kind="application/x-ndjson")[:1]
    started = gateway(slow, told=[lambda _request: [*head, *states]], hold=HoldOptions(ahead=1))
    hold, answers = started.dispatch.hold, list[int]()
    clients = [
        threading.Thread(target=lambda: answers.append(started.complete(max_tokens=1).status_code)) for _ in range(6)
    ]
    for client in clients:
        client.start()
    until(lambda: hold.waiting == 6)
    goes["ready"] = True
    until(lambda: started.asked == [2])
    # One that is computed, and one ahead.
    assert hold.waiting == 4 and started.dispatch.router.loads.requests == [2]
    goes["answers"] = True
    for client in clients:
        client.join(PATIENCE)
    assert answers == [200] * 6 and hold.line.unused
