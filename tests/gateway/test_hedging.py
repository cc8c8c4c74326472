"""A stream that does not begin is asked for at a second replica, and the one that begins first is heard."""

import socket
import threading
from urllib.parse import urlsplit

from gateway.conftest import Gateway, Start
from penstock.gateway.options import HedgeOptions
from penstock.routing.hedging import LEAST
from support.scripted_http import CLOSE, Received, Script, Step, answer, whole_answer
from support.waiting import PATIENCE, until


def waiting(until_told: threading.Event) -> Script:
    """Says nothing until it is told to."""
    return lambda request: [until_told.is_set, *whole_answer(request)]


def begun(gateway: Gateway, seconds: float = 0.01, sent: int = 10) -> None:
    """Answers have begun so soon, after so many requests: a tenth of these may be sent twice."""
    for _ in range(LEAST):
        gateway.dispatch.hedging.began(seconds)
    for _ in range(sent):
        gateway.dispatch.hedging.sent()


def test_the_one_that_begins_first_is_heard_and_the_other_left(gateway: Start) -> None:
    never = threading.Event()
    started = gateway(waiting(never), whole_answer, hedge=HedgeOptions(part=0.1))
    begun(started)
    answered = started.complete(max_tokens=2, stream=True)
    assert answered.status_code == 200 and answered.text.endswith("[DONE]\n\n")
    assert answered.headers["x-penstock-replica"] == started.servers[1].base
    until(lambda: started.servers[0].left)
    assert started.dispatch.figures.retries["hedged"] == 1 and started.dispatch.figures.retries["sent"] == 0
    told = started.http.get(f"/v1/requests/{answered.headers['x-request-id']}/explain").json()["gateway"]
    assert [each["ended"] for each in told["tries"]] == [
        "left, since another replica began sooner",
        "answered with status 200",
    ]
    assert not started.dispatch.figures.failures[0]
    started.wait_until_empty()


def test_where_the_second_cannot_the_first_goes_on(gateway: Start) -> None:
    refusals: list[list[Step]] = [[CLOSE], answer(b"{}", 503)]
    for refusal in refusals:
        told = threading.Event()

        def refuse(_request: Received, refusal: list[Step] = refusal, told: threading.Event = told) -> list[Step]:
            told.set()
            return refusal

        started = gateway(waiting(told), refuse, hedge=HedgeOptions(part=0.1))
        begun(started)
        answered = started.complete(max_tokens=2, stream=True)
        assert answered.status_code == 200 and answered.headers["x-penstock-replica"] == started.servers[0].base
        # One that is busy has not failed.
        assert started.dispatch.figures.failures[1] <= (refusal == [CLOSE])
        assert started.asked[0] == 1 and started.dispatch.figures.retries["hedged"] == 1
        started.wait_until_empty()


def test_both_that_fail_are_told(gateway: Start) -> None:
    told = threading.Event()

    def refuse(_request: Received) -> list[Step]:
        told.set()
        return [CLOSE]

    started = gateway(lambda _request: [told.is_set, CLOSE], refuse, hedge=HedgeOptions(part=0.1))
    begun(started)
    answered = started.complete(max_tokens=2, stream=True)
    assert answered.status_code == 502 and answered.json()["error"]["code"] == "replica_broken"
    started.wait_until_empty()


def test_no_more_are_sent_twice_than_the_part_that_was_asked_for(gateway: Start) -> None:
    told = threading.Event()
    started = gateway(waiting(told), waiting(told), hedge=HedgeOptions(part=0.1))
    begun(started)
    threads = [threading.Thread(target=started.complete, kwargs={"max_tokens": 1, "stream": True}) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: sum(started.asked) > len(threads))
    told.set()
    for thread in threads:
        thread.join(PATIENCE)
    # Of 18 requests.
    assert started.dispatch.figures.retries["hedged"] == 1
    started.wait_until_empty()


def test_what_is_no_stream_is_sent_once(gateway: Start) -> None:
    """However late it is: the second answer would be there at once."""
    started = gateway(lambda request: [0.3, *whole_answer(request)], whole_answer, hedge=HedgeOptions(part=0.1))
    begun(started, seconds=0.0)
    assert started.complete(max_tokens=1).headers["x-penstock-replica"] == started.servers[0].base
    assert started.asked == [1, 0]


def test_both_are_left_where_the_client_leaves(gateway: Start) -> None:
    never = threading.Event()
    started = gateway(waiting(never), waiting(never), hedge=HedgeOptions(part=0.1))
    begun(started)
    where = urlsplit(started.url)
    body = b'{"model": "scripted", "prompt": "the fox", "max_tokens": 2, "stream": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection((str(where.hostname), int(where.port or 0)), PATIENCE) as client:
        client.sendall(head % len(body) + body)
        until(lambda: started.asked == [1, 1])
    until(lambda: [server.left for server in started.servers] == [1, 1])
    started.wait_until_empty()
    told = started.http.get("/v1/requests").json()["data"][0]
    assert told["outcome"] == "cancelled" and {each["ended"] for each in told["tries"]} == {"left"}
