"""Load over real sockets on a server that answers as it is told to."""

import asyncio
import itertools
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette

from penstock.bench.load import saturation
from penstock.bench.load.address import parse_address
from penstock.bench.load.arrivals import Arrivals, Closed, Open, Replay
from penstock.bench.load.bodies import Bodies
from penstock.bench.load.client import Client
from penstock.bench.load.content import TokenIds, Words
from penstock.bench.load.lengths import Lengths
from penstock.bench.load.metrics import Summary, summarize
from penstock.bench.load.outcome import End, Outcome
from penstock.bench.load.run import Limits, Run, run_load
from penstock.bench.load.workload import Conversation, Shape, random_conversations, with_cancellations
from support.http_server import running
from support.scripted_http import (
    CLOSE,
    Received,
    ScriptedServer,
    Step,
    answer,
    scripted,
    stream,
    text_chunk,
    usage_chunk,
    whole_answer,
)
from support.waiting import PATIENCE, until

IDS = Bodies("completions", "scripted", TokenIds(100, 1000))
SHAPE = Shape(Lengths("fixed", 8), Lengths("fixed", 4))


def load(
    server: ScriptedServer,
    arrivals: Arrivals,
    limits: Limits,
    conversations: Iterable[Conversation] | None = None,
    bodies: Bodies = IDS,
    timeout: float = PATIENCE,
    key: str | None = None,
) -> Run:
    async def main() -> Run:
        client = Client(parse_address(server.base), key, timeout)
        try:
            asked = random_conversations(SHAPE, 0) if conversations is None else conversations
            return await run_load(client, bodies, asked, arrivals, limits)
        finally:
            client.close()

    return asyncio.run(main())


def kinds(run: Run) -> set[str | None]:
    return {outcome.kind for outcome in run.outcomes}


def test_a_closed_loop_has_so_many_at_a_time_and_keeps_its_connections() -> None:
    with scripted(whole_answer) as server:
        run = load(server, Closed(4), Limits(conversations=20))
        found: Summary = summarize(run, None)
    assert (found.sent, found.succeeded, found.most_in_flight) == (20, 20, 4)
    assert server.connections == 4
    assert (found.input_tokens, found.output_tokens) == (160, 80)
    assert len(run.gaps) == 20 * 3
    assert sorted(outcome.number for outcome in run.outcomes) == list(range(20))


def test_gaps_are_those_between_reads() -> None:
    """The server sends a chunk once the client's loop has had four turns, a millisecond each, since the last one."""
    turns = 0

    def later() -> Callable[[], bool]:
        seen: list[int] = []

        def is_later() -> bool:
            seen.append(turns)
            return turns >= seen[0] + 4

        return is_later

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    async def main(base: str) -> Run:
        client = Client(parse_address(base), timeout=PATIENCE)
        turning = asyncio.ensure_future(turn())
        try:
            return await run_load(client, IDS, random_conversations(SHAPE, 0), Closed(4), Limits(conversations=8))
        finally:
            turning.cancel()
            client.close()

    def script(request: Received) -> list[Step]:
        return [later() if isinstance(step, float) else step for step in whole_answer(request)]

    with scripted(script) as server:
        run = asyncio.run(main(server.base))
    assert len(run.gaps) == 8 * 3
    # In the second turn at the latest it has read what was sent before the first.
    assert min(run.gaps) > 0.001


def test_bodies_are_what_was_asked_for() -> None:
    bodies = Bodies("completions", "scripted", TokenIds(100, 1000), 0.5, True, {"top_p": 0.9})
    with scripted(whole_answer) as server:
        load(server, Closed(1), Limits(conversations=1), bodies=bodies, key="secret")
    (request,) = server.asked
    prompt = request.body.pop("prompt")
    assert len(prompt) == 8
    assert request.path == "/v1/completions"
    assert request.headers["authorization"] == "Bearer secret"
    assert request.body == {
        "model": "scripted", "max_tokens": 4, "temperature": 0.5, "stream": True, "ignore_eos": True, "top_p": 0.9,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_an_open_loop_waits_for_nobody() -> None:
    # No request is answered before all have come.
    with scripted(lambda request: [lambda: len(server.asked) == 20, *whole_answer(request)]) as server:
        run = load(server, Open(100.0), Limits(conversations=20))
    found = summarize(run, None)
    assert (found.succeeded, found.most_in_flight) == (20, 20)
    due = [outcome.scheduled for outcome in sorted(run.outcomes, key=lambda outcome: outcome.number)]
    assert due == sorted(due)
    assert all(outcome.started >= outcome.scheduled for outcome in run.outcomes)


def test_a_trace_is_replayed_at_its_times() -> None:
    plan = itertools.islice(random_conversations(SHAPE, 0), 3)
    timed = [Conversation(item.turns, at) for item, at in zip(plan, (0.0, 0.2, 1.0), strict=True)]
    with scripted(whole_answer) as server:
        run = load(server, Replay(0.5), Limits(), timed)
    assert [outcome.scheduled for outcome in run.outcomes] == [0.0, 0.1, 0.5]
    assert all(outcome.started >= outcome.scheduled for outcome in run.outcomes)


def test_waiting_for_a_busy_client_is_part_of_the_latency() -> None:
    """A program that is stuck sends late; the timers have begun when it should have sent."""

    def stuck() -> Iterator[Conversation]:
        for number, item in enumerate(random_conversations(SHAPE, 0)):
            if number == 65:
                time.sleep(0.3)
            yield Conversation(item.turns, at=0.05)

    with scripted(whole_answer) as server:
        run = load(server, Replay(1.0), Limits(conversations=70), stuck())
    late = [outcome for outcome in run.outcomes if outcome.number >= 66]
    assert all(outcome.lag >= 0.2 for outcome in late)
    assert all((outcome.ttft or 0.0) >= 0.2 for outcome in late)
    found = summarize(run, None)
    assert found.send_lag is not None
    assert found.send_lag.max >= 0.2


def test_no_more_is_sent_after_the_duration() -> None:
    with scripted(lambda request: whole_answer(request, 0.01)) as server:
        closed = load(server, Closed(2), Limits(seconds=0.3))
        opened = load(server, Open(50.0), Limits(seconds=0.3))
    for run in (closed, opened):
        assert run.outcomes
        assert all(outcome.scheduled < 0.3 and outcome.end is End.OK for outcome in run.outcomes)


def test_cancelled_requests_are_left_and_counted_apart() -> None:
    plan = with_cancellations(random_conversations(Shape(Lengths("fixed", 8), Lengths("fixed", 50)), 0), 1.0, 0)
    # Before the last chunk the server waits until the client has left.
    with scripted(lambda request: [*whole_answer(request, 0.005)[:-5], lambda: False]) as server:
        run = load(server, Closed(4), Limits(conversations=8), plan)
        until(lambda: server.left == 8)
    found = summarize(run, None)
    assert (found.cancelled, found.succeeded, found.failed, found.ttft) == (8, 0, 0, None)
    assert all(1 <= outcome.chunks < 50 for outcome in run.outcomes)
    assert not run.gaps


@pytest.mark.parametrize("chat", [False, True])
def test_later_turns_have_what_was_said_before(chat: bool) -> None:
    bodies = Bodies("chat" if chat else "completions", "scripted", Words())
    shape = Shape(Lengths("fixed", 3), Lengths("fixed", 2), turns=3)
    with scripted(whole_answer) as server:
        run = load(server, Closed(1), Limits(conversations=1, think_time=0.05), random_conversations(shape, 0), bodies)
    assert [(outcome.number, outcome.turn) for outcome in run.outcomes] == [(0, 0), (0, 1), (0, 2)]
    for before, after in itertools.pairwise(run.outcomes):
        assert after.scheduled >= before.ended + 0.05
    first, second, third = (request.body for request in server.asked)
    if chat:
        assert [message["role"] for message in third["messages"]] == ["user", "assistant"] * 2 + ["user"]
        assert third["messages"][1]["content"] == "w w "
        assert third["messages"][:3] == second["messages"]
        assert second["messages"][:1] == first["messages"]
    else:
        assert second["prompt"].startswith(first["prompt"] + "w w ")
        assert third["prompt"].startswith(second["prompt"] + "w w ")


RIGHT = (text_chunk("a", "stop"), usage_chunk(1, 1), "[DONE]")


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        (answer(b'{"error": {"message": "busy"}}', 503), "HTTP 503"),
        (answer(b"{}", 200), "not an event stream"),
        (stream(*RIGHT[:2]), "no [DONE]"),
        (stream(text_chunk("a"), b"data: {half\n\n", *RIGHT), "invalid JSON"),
        (stream(text_chunk("a"), CLOSE), "connection lost"),
        ([CLOSE], "connection lost"),
        ([b"nonsense\r\n\r\n"], "not HTTP"),
        (stream(text_chunk("a"), PATIENCE, *RIGHT), "timeout"),
        (stream({"error": {"message": "the engine died"}}, "[DONE]"), "error in the stream"),
    ],
)
def test_what_goes_wrong_has_its_kind(steps: list[Step], kind: str) -> None:
    with scripted(lambda _: steps) as server:
        run = load(server, Closed(1), Limits(conversations=1), timeout=0.4 if kind == "timeout" else PATIENCE)
    assert kinds(run) == {kind}
    assert [outcome.end for outcome in run.outcomes] == [End.FAILED]


def test_a_server_that_is_gone_is_an_outcome() -> None:
    with scripted(whole_answer) as server:
        pass
    assert kinds(load(server, Closed(2), Limits(conversations=4))) == {"no connection"}


def test_an_answer_that_ends_with_its_connection() -> None:
    def close_delimited(request: Received) -> list[Step]:
        body = b"".join(step for step in whole_answer(request)[1:-1] if isinstance(step, bytes))
        events = [line + b"\n\n" for line in body.split(b"\r\n") if line.startswith(b"data")]
        plain = b"".join(events).replace(b"\n\n\n\n", b"\n\n")
        return [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + plain, 0.01, CLOSE]

    with scripted(close_delimited) as server:
        run = load(server, Closed(1), Limits(conversations=3))
    assert server.connections == 3
    # Some systems throw away what was not read when a connection is reset; the answer had the time to arrive.
    assert [outcome.end for outcome in run.outcomes] == [End.OK] * 3


def test_a_kept_connection_that_was_closed_is_replaced() -> None:
    seen: list[int] = []

    def close_after(request: Received) -> list[Step]:
        seen.append(request.connection)
        return [CLOSE] if seen.count(request.connection) > 1 else whole_answer(request)

    with scripted(close_after) as server:
        run = load(server, Closed(1), Limits(conversations=4))
    assert [outcome.end for outcome in run.outcomes] == [End.OK] * 4
    assert server.connections == 4


def test_a_rate_beyond_the_server_is_left_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturation, "SECONDS", 1.5)
    plan = random_conversations(SHAPE, 0)
    # It answers nothing until its client has left.
    with scripted(lambda request: [lambda: False]) as server:
        run = load(server, Open(40.0), Limits(seconds=PATIENCE, stop_early=True), plan)
    assert run.oversaturated
    assert run.seconds < PATIENCE
    assert {outcome.end for outcome in run.outcomes} == {End.ABANDONED}
    found = summarize(run, None)
    assert found.abandoned == found.sent >= 40


def test_a_fault_of_the_workload_ends_the_run() -> None:
    def broken() -> Iterator[Conversation]:
        yield from itertools.islice(random_conversations(SHAPE, 0), 3)
        raise RuntimeError("the file ends here")

    for arrivals in (Closed(2), Open(1000.0)):
        with scripted(whole_answer) as server, pytest.raises(RuntimeError, match="the file ends here"):
            load(server, arrivals, Limits(), broken())


def test_ipv6() -> None:
    with scripted(whole_answer, host="::1") as server:
        run = load(server, Closed(1), Limits(conversations=2))
    assert [outcome.end for outcome in run.outcomes] == [End.OK] * 2
    assert server.asked[0].headers["host"] == server.base.removeprefix("http://")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_https_with_a_certificate_that_is_trusted_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        key,
        "-out",
        certificate,
        *subject,
    ]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with scripted(whole_answer, tls=tls) as server:
        unknown = load(server, Closed(1), Limits(conversations=1))
        monkeypatch.setenv("SSL_CERT_FILE", certificate)
        trusted = load(server, Closed(1), Limits(conversations=3))
    (failed,) = unknown.outcomes
    assert failed.kind == "no connection"
    assert "certificate is not trusted" in (failed.message or "")
    assert [outcome.end for outcome in trusted.outcomes] == [End.OK] * 3


def test_no_tls_where_it_was_expected() -> None:
    with running(Starlette()) as base:
        run = load(ScriptedServer(base.replace("http:", "https:")), Closed(1), Limits(conversations=1))
    assert kinds(run) == {"no connection"}
    assert "there is no TLS with it" in (run.outcomes[0].message or "")


def test_outcomes_are_told_as_they_come() -> None:
    told: list[tuple[Outcome, int]] = []

    async def main(base: str) -> None:
        client = Client(parse_address(base))
        plan = random_conversations(SHAPE, 0)
        watch = lambda outcome, flight: told.append((outcome, flight))  # noqa: E731
        await run_load(client, IDS, plan, Closed(2), Limits(conversations=5), 0, watch)
        client.close()

    with scripted(whole_answer) as server:
        asyncio.run(main(server.base))
    assert len(told) == 5
    assert {flight for _, flight in told} <= {0, 1}
