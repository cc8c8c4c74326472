"""Stores of slots keep to one protocol, each on the real thing."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.configuration.stores import parse_store
from penstock.runtime.slot_files import SlotFiles
from penstock.runtime.slot_mooncake import SlotMooncake
from penstock.runtime.slot_objects import SlotObjects
from penstock.runtime.slot_store import SlotStore
from penstock.runtime.slot_values import SlotValues
from support.kv_stores import KINDS, KVStore, opened

NAME = (1, bytes(range(32)))


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KVStore]:
    with opened(request.param, tmp_path_factory.mktemp("s")) as server:
        yield server


def store_at(url: str, part: str) -> SlotStore:
    shared = parse_store(url)
    if shared.kind == "folder":
        return SlotFiles(Path(shared.address) / part, shared.most_bytes, private=False)
    if shared.kind == "mooncake":
        return SlotMooncake(shared, part, 1 << 20)
    return SlotValues(shared.address, part) if shared.kind == "valkey" else SlotObjects(shared, part, b"{}")


def test_what_one_writes_others_find(server: KVStore) -> None:
    ours, theirs, other_part = (store_at(server.url, part) for part in ("one", "one", "two"))
    assert list(ours.names()) == []
    for number in range(3):
        assert list(ours.put((number, NAME[1]), bytes([number]) * 1000)) == []
    assert sorted(theirs.names()) == [(number, NAME[1]) for number in range(3)]
    assert theirs.get((2, NAME[1]), 1000) == bytes([2]) * 1000
    assert list(other_part.names()) == [] and other_part.get(NAME, 1000) is None
    theirs.put(NAME, b"anew")
    assert ours.get(NAME, 1000) == b"anew"


def test_what_is_missing_or_too_long_is_none(server: KVStore) -> None:
    store = store_at(server.url, "missing")
    assert store.get(NAME, 1000) is None
    store.put(NAME, b"x" * 1001)
    assert store.get(NAME, 1000) is None and store.get(NAME, 1001) == b"x" * 1001


def test_a_value_is_there_as_a_whole_while_it_is_written_again(server: KVStore) -> None:
    """Or the store fails, as the S3 server of these tests does now and then. Mooncake may have none for a moment."""
    store, writer = store_at(server.url, "whole"), store_at(server.url, "whole")
    values = [bytes([each]) * 200_000 for each in range(4)]
    possible = {*values, None} if isinstance(store, SlotMooncake) else {*values}
    store.put(NAME, values[0])
    ends = threading.Event()

    def write() -> None:
        while not ends.is_set():
            for value in values:
                with contextlib.suppress(*writer.failures):
                    writer.put(NAME, value)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        whole = 0
        while whole < 50:
            with contextlib.suppress(*store.failures):
                assert store.get(NAME, 200_000) in possible
                whole += 1
    finally:
        ends.set()
        writing.join()


def test_one_that_is_away_fails_and_works_when_it_is_back(server: KVStore) -> None:
    """This is the last test of each: what it had is gone."""
    store = store_at(server.url, "away")
    store.put(NAME, b"x")
    server.kill()
    for call in (store.names, lambda: store.get(NAME, 1), lambda: store.put(NAME, b"x")):
        with pytest.raises(store.failures):
            call()
    server.start()
    assert list(store.names()) == [] and store.get(NAME, 1) is None
    store.put(NAME, b"y")
    assert store.get(NAME, 1) == b"y"


def test_valkey_forgets_what_is_not_read_for_long(tmp_path: Path) -> None:
    with opened("valkey", tmp_path) as server:
        store = store_at(server.url, "part")
        store.put(NAME, b"x")
        with server.client() as client:  # type: ignore[attr-defined]
            (key,) = client.keys()
            assert client.ttl(key) > 3600
            client.expire(key, 100)
            store.get(NAME, 1)
            assert client.ttl(key) > 3600


def test_a_url_that_its_client_does_not_take_is_told() -> None:
    with pytest.raises(ValueError, match="no_such"):
        store_at("redis://localhost?no_such=1", "part")


def test_valkey_that_wants_a_password_refuses(tmp_path: Path) -> None:
    with opened("valkey", tmp_path) as server:
        with server.client() as client:  # type: ignore[attr-defined]
            client.config_set("requirepass", "word")
        for store in (store_at(server.url, "part"), store_at(f"{server.url}?password=wrong", "part")):
            with pytest.raises(store.refusals):
                store.names()
        assert list(store_at(f"{server.url}?password=word", "part").names()) == []


def test_valkey_that_is_full_is_read_all_the_same(tmp_path: Path) -> None:
    with opened("valkey", tmp_path) as server:
        store = store_at(server.url, "part")
        store.put(NAME, b"x")
        with server.client() as client:  # type: ignore[attr-defined]
            client.config_set("maxmemory", 1)
        with pytest.raises(store.failures, match="maxmemory"):
            store.put((0, NAME[1]), b"y")
        assert store.get(NAME, 1) == b"x"
