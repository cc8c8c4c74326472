"""Gateways that share answers in a real store, which is killed, hangs and comes back."""

import asyncio
import contextlib
import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.conftest import Gateway, Start
from gateway.test_answer_cache import ask, counts, numbered, said, text
from penstock.access.keys import Key, Keyring
from penstock.access.tenants import Tenant
from penstock.assembly.gateway import shared_answers
from penstock.core.errors import ConfigurationError
from penstock.gateway.answers import Answer
from penstock.gateway.shared_answers import SharedAnswers
from support.shared_store import SharedStore
from support.waiting import PATIENCE, reached, until

ANSWER = Answer([(b"content-type", b"application/json")], b"{}")


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStore]:
    opened = SharedStore(tmp_path_factory.mktemp("s"))
    yield opened
    opened.close()


@pytest.fixture
def sharing(gateway: Start) -> Callable[..., Gateway]:
    """Starts a gateway with a key "alice" whose answers are kept for an hour in a store."""

    def start(store: SharedStore, seconds: float = PATIENCE, **options: Any) -> Gateway:
        alice = Tenant(name="alice", answer_cache_seconds=3600)
        keys = Keyring([Key(alice, hashlib.sha256(b"alice").digest())])
        return gateway(numbered(), keys=keys, answers=SharedAnswers(store.url, seconds), **options)

    return start


def test_what_one_gateway_was_answered_another_gives_again(store: SharedStore, sharing: Callable[..., Gateway]) -> None:
    first, second = sharing(store), sharing(store)
    assert text(ask(first)) == "number 1"
    until(lambda: store.client().dbsize() == 1)
    again = ask(second)
    assert text(again) == "number 1" and said(again)[0] == "hit" and int(said(again)[1] or -1) >= 0
    assert second.asked == [0] and counts(second) == {"hit": 1}
    # It goes by itself.
    (name,) = store.client().keys()
    assert 0 < store.client().ttl(name) <= 3600
    assert b"number" not in name and b"alice" not in name


def test_a_store_that_is_away_is_as_if_it_had_nothing(
    store: SharedStore, sharing: Callable[..., Gateway], caplog: pytest.LogCaptureFixture
) -> None:
    gateway = sharing(store)
    ask(gateway)
    until(lambda: store.client().dbsize() == 1)
    store.kill()
    away = ask(gateway)
    assert text(away) == "number 2" and said(away)[0] == "miss"
    assert counts(gateway) == {"miss": 1, "away": 1}
    assert "The store of answers does not answer" in caplog.text
    metrics = gateway.http.get("/metrics", headers={"authorization": "Bearer alice"}).text
    assert "penstock_gateway_answers_away 1.0\n" in metrics
    way = gateway.http.get("/v1/requests", headers={"authorization": "Bearer alice"}).json()["data"][0]
    assert way["cached"]["lookup"] == "away" and way["cached"]["why"]
    store.start()
    until(lambda: said(ask(gateway))[0] == "hit")
    assert "The store of answers answers again." in caplog.text
    assert gateway.dispatch.answers.answers.away is None


def test_a_store_that_hangs_is_waited_for_once_and_not_for_long(
    store: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr("penstock.gateway.shared_answers._REST_SECONDS", PATIENCE)
        answers = SharedAnswers(store.url, 0.05)
        async with answers.watched():
            _send(store, signal.SIGSTOP)
            try:
                assert await answers.find(b"k", 60) is None
                assert answers.away == "nothing in 0.05 s" or "imeout" in (answers.away or "")
                # Until it is asked again, nobody waits for it: the loop does not even turn.
                waiting = answers.find(b"k", 60)
                with pytest.raises(StopIteration):
                    waiting.send(None)
            finally:
                _send(store, signal.SIGCONT)

            answers._asked_again = 0.0
            monkeypatch.setattr("penstock.gateway.shared_answers._REST_SECONDS", 0.0)

            async def asked() -> bool:
                await answers.find(b"k", 60)
                return answers.away is None

            while not await asked():
                await asyncio.sleep(0.01)

    asyncio.run(run())


def _send(store: SharedStore, sent: signal.Signals) -> None:
    assert store._process is not None
    os.kill(store._process.pid, sent)


def test_what_is_too_old_or_written_otherwise_is_not_found(store: SharedStore) -> None:
    async def run() -> None:
        answers = SharedAnswers(store.url, PATIENCE)
        async with answers.watched():
            answers.put(b"k", ANSWER, 3600)
            await reached(lambda: store.client().dbsize() == 1)
            found = await answers.find(b"k", 3600)
            assert found is not None and found.answer == ANSWER and 0 <= found.age < 3600
            assert await answers.find(b"k", 0) is None and await answers.find(b"l", 3600) is None
            (name,) = store.client().keys()
            # As if it had been there for half an hour.
            store.client().expire(name, 1800)
            assert await answers.find(b"k", 1700) is None
            found = await answers.find(b"k", 1801 + PATIENCE)
            assert found is not None and 1799 < found.age < 1801 + PATIENCE
            for content in (b"", b"\xc1", b"\x93\x02\x01\xc0"):
                store.client().set(name, content, ex=3600)
                assert await answers.find(b"k", 3600) is None
            assert answers.away is None

    asyncio.run(run())


def test_a_store_that_is_full_keeps_no_answer_and_has_those_that_were_used(store: SharedStore) -> None:
    client = store.client()
    client.config_set("maxmemory", "4mb")
    client.config_set("maxmemory-policy", "allkeys-lru")

    async def run() -> None:
        answers = SharedAnswers(store.url, PATIENCE)
        async with answers.watched():
            for number in range(200):
                answers.put(b"%d" % number, Answer([], b"x" * 100_000), 3600)
                await reached(lambda: not answers._tasks)
            assert answers.dropped == 0
            assert await answers.find(b"199", 3600) is not None and await answers.find(b"0", 3600) is None
            # Where nothing may go, it takes no more; what is there is given on.
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", "1")
            answers.put(b"more", ANSWER, 3600)
            await reached(lambda: answers.dropped == 1)
            assert await answers.find(b"199", 3600) is not None and answers.away is None

    asyncio.run(run())


def test_what_cannot_be_used_as_a_store(store: SharedStore, caplog: pytest.LogCaptureFixture) -> None:
    for url, says in (
        ("10.0.0.9:6379", "must be a URL such as redis://10.0.0.9:6379/0"),
        ("http://10.0.0.9", "with one of redis, rediss, valkey"),
        ("redis://10.0.0.9:port", "--answer-store cannot be used"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            shared_answers(url, 0.1)
    store.client().config_set("requirepass", "secret")

    async def start() -> None:
        async with SharedAnswers(store.url, PATIENCE).watched():
            raise AssertionError("it must not start")

    with pytest.raises(ConfigurationError, match="--answer-store: the store refuses this gateway"):
        asyncio.run(start())


def test_a_store_without_a_bound_is_told_of(store: SharedStore, caplog: pytest.LogCaptureFixture) -> None:
    async def start() -> None:
        async with SharedAnswers(store.url, PATIENCE).watched():
            pass

    asyncio.run(start())
    assert "The store of answers has no bound: set its maxmemory" in caplog.text


def test_a_store_that_is_not_there_yet_may_come(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def start() -> None:
        answers = SharedAnswers(f"unix://{tmp_path}/nothing", PATIENCE)
        async with answers.watched():
            assert await answers.find(b"k", 60) is None and answers.away
            answers.put(b"k", ANSWER, 60)
            assert answers.dropped == 1

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(start())
    assert caplog.text.count("The store of answers does not answer") == 1
