"""Replicas that lie, blink or answer half: none of it reaches others, and what is well is left alone."""

import asyncio
import json
import threading

import httpx
import pytest

from gateway.conftest import Gateway, Start
from gateway.test_told import line, telling
from penstock.gateway.dispatch import Wanted
from penstock.gateway.options import HoldOptions, RetryOptions
from penstock.gateway.replicas import State
from support.scripted_http import CLOSE, Received, Script, Step, answer, stream, whole_answer
from support.waiting import PATIENCE, until

MINE = {"models": ["scripted"]}


def blinking(seen: list[int], again: Script) -> Script:
    """States that break off when `seen` says so; afterwards what `again` says."""

    def told(request: Received) -> list[Step]:
        seen[0] += 1
        if seen[0] > 1:
            return list(again(request))
        return [*stream(line(**MINE), lambda: seen[1], kind="application/x-ndjson")[:-1], CLOSE]

    return told


def completing(gateway: Gateway, **fields: object) -> tuple[threading.Thread, list[httpx.Response]]:
    """A request that is under way."""
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(gateway.complete(**fields)))
    thread.start()
    return thread, answers


def test_numbers_that_cannot_be_are_not_taken_in(gateway: Start) -> None:
    lies = [
        line(**MINE, speed={"prefill": 0, "decode": 0.1}),
        line(**MINE, speed={"prefill": 10.0, "decode": -1.0}),
        line(**MINE, running=-5),
        line(**MINE, kv={"events": 5557, "replay": 5558, "block_size": 0}),
    ]
    started = gateway(*[whole_answer] * 5, told=[telling(each) for each in lies], policy="estimated")
    until(lambda: [each.state for each in started.replicas.all] == [State.UNREACHABLE] * 4 + [State.READY])
    assert all("what it says of itself cannot be read" in each.why for each in started.replicas.all[:4])
    assert started.complete(max_tokens=2).status_code == 200 and started.asked == [0, 0, 0, 0, 1]


def test_what_waits_at_a_replica_stays_there_when_only_its_state_breaks_off(gateway: Start) -> None:
    seen, goes = [0, 0], [False]

    def slow(request: Received) -> list[Step]:
        return [lambda: goes[0], *whole_answer(request)]

    started = gateway(slow, whole_answer, told=[blinking(seen, telling(line(**MINE))), telling(line(**MINE))])
    first = started.replicas.all[0]
    until(lambda: all(each.told for each in started.replicas.all))
    threads = [completing(started, max_tokens=1) for _ in range(2)]
    until(lambda: sum(started.asked) == 2 and started.asked[0] == 1)
    seen[1] = 1
    until(lambda: seen[0] == 2 and first.state == State.READY)
    goes[0] = True
    for thread, answers in threads:
        thread.join(PATIENCE)
        assert answers[0].status_code == 200
    assert started.asked == [1, 1] and not sum(started.dispatch.figures.failures)


def test_a_proxy_that_answers_for_a_replica_does_not_make_it_another_programs(gateway: Start) -> None:
    seen = [0, 0]
    broken = blinking(seen, lambda _request: answer(b"{}", 502))
    started = gateway(whole_answer, told=[broken])
    [replica] = started.replicas.all
    until(lambda: replica.told is not None)
    seen[1] = 1
    until(lambda: replica.why == "it does not tell its state (502)")
    assert replica.state == State.UNREACHABLE and replica.told is not None


def test_models_are_listed_while_one_that_has_them_begins_anew(gateway: Start) -> None:
    goes = [False]
    loading = telling(line(**MINE), lambda: goes[0], line(models=[], why="The engine loads."))
    started = gateway(whole_answer, whole_answer, told=[loading, telling(line(**MINE), *[0.1, line(**MINE)] * 300)])
    until(lambda: all(each.told for each in started.replicas.all))
    goes[0] = True
    until(lambda: started.replicas.all[0].state == State.UNREADY)
    assert [card["id"] for card in started.http.get("/v1/models").json()["data"]] == ["scripted"]


def test_an_error_is_an_event_of_its_own_wherever_a_stream_breaks_off(gateway: Start) -> None:
    for lines in ("\n\n", "\r\n\r\n"):
        whole = f'data: {{"a": 1}}{lines}'.encode()
        started = gateway(lambda _request, whole=whole: [*stream(whole, whole[:9])[:-1], CLOSE])
        text = started.http.post("/v1/completions", json={"prompt": "x", "stream": True}).text
        events = [each.removeprefix("data: ") for each in text.replace("\r", "").split("\n\n") if each]
        assert json.loads(events[0]) == {"a": 1} and "error" in json.loads(events[1]) and events[2:] == ["[DONE]"]


def test_what_ends_without_an_empty_line_is_passed_on_all_the_same(gateway: Start) -> None:
    started = gateway(lambda _request: stream(b"data: x\n\ndata: y"))
    assert started.http.post("/v1/completions", json={"prompt": "x", "stream": True}).text == "data: x\n\ndata: y"


@pytest.mark.usefixtures("standing")
def test_moving_requests_takes_from_the_budget_at_once(gateway: Start) -> None:
    started = gateway(whole_answer, whole_answer)
    until(lambda: all(each.state == State.READY for each in started.replicas.all))

    async def moved() -> int:
        return sum(started.dispatch.may_begin_again(Wanted("scripted", 5), [0]) for _ in range(60))

    # The reserve, of which nothing comes back.
    assert asyncio.run(moved()) == 10


@pytest.mark.usefixtures("standing")
def test_a_replica_behind_a_proxy_that_times_out_is_left_out(gateway: Start) -> None:
    started = gateway(lambda _request: answer(b"{}", 504), whole_answer)
    statuses = [started.complete(max_tokens=1).status_code for _ in range(12)]
    # It may have computed them: none is sent to another one.
    assert statuses.count(504) == started.asked[0] == 3


def test_a_name_that_is_too_long_is_not_looked_for(gateway: Start) -> None:
    refused = gateway(whole_answer).complete(model="m" * 600)
    assert refused.status_code == 400 and "length <= 512" in refused.json()["error"]["message"]


def test_replicas_that_have_become_alike_are_not_told_apart_any_more(gateway: Start) -> None:
    goes = [False]
    changing = telling(line(**MINE, identity="old"), lambda: goes[0], line(**MINE, identity="new"))
    started = gateway(whole_answer, whole_answer, told=[changing, telling(line(**MINE, identity="new"))])

    def unlike() -> list[str | None]:
        return [each["unlike"] for each in started.http.get("/v1/fleet").json()["replicas"]]

    names = [each.name for each in started.replicas.all]
    until(lambda: unlike() == names[::-1])
    goes[0] = True
    until(lambda: unlike() == [None, None])


def test_a_replica_learns_how_much_of_its_time_a_request_has_used_up(gateway: Start) -> None:
    ready = [False]
    told = telling(line(why="It loads."), lambda: ready[0], line(**MINE))
    started = gateway(whole_answer, told=[told], hold=HoldOptions(seconds=PATIENCE))
    until(lambda: started.replicas.all[0].state == State.UNREADY)
    thread, answers = completing(started, max_tokens=1, timeout=PATIENCE)
    until(lambda: started.dispatch.hold.waiting == 1)
    threading.Event().wait(0.2)
    ready[0] = True
    thread.join(PATIENCE)
    assert answers[0].status_code == 200
    http = started.http.post("/v1/completions", json={"max_tokens": 1}, headers={"x-penstock-waited": "1e9"})
    assert http.status_code == 200
    waited, none = (asked.headers.get("x-penstock-waited") for asked in started.servers[0].asked)
    assert waited is not None and float(waited) >= 0.2 and none is None


def test_an_account_says_why_not_elsewhere(gateway: Start) -> None:
    started = gateway(whole_answer, whole_answer, told=[telling(line(**MINE, why="The engine loads."))])
    until(lambda: [each.state for each in started.replicas.all] == [State.UNREADY, State.READY])
    assert started.complete(max_tokens=1).status_code == 200
    [way] = started.http.get("/v1/requests").json()["data"]
    assert way["tries"][0]["others"] == {started.replicas.all[0].name: "The engine loads"}


def test_streams_go_on_at_replicas_that_may_give_other_bits_only_where_that_is_allowed(gateway: Start) -> None:
    for allowed in (False, True):
        states = [telling(line(**MINE, identity=identity)) for identity in ("one", "two", "")]
        started = gateway(*[whole_answer] * 3, told=states, retries=RetryOptions(unlike=allowed))
        until(lambda started=started: all(each.told for each in started.replicas.all))
        broken, *others = started.replicas.all
        found = started.dispatch.can_go_on(Wanted("scripted", 5), broken, [broken.place])
        assert found == ([each.place for each in others] if allowed else [])
