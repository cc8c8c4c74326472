"""Slots in a real cluster of Mooncake Store, whose master, memory and clients are killed, stopped and started again."""

import contextlib
import http.server
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock.configuration.stores import parse_store
from penstock.runtime import mooncake_client
from penstock.runtime.mooncake_client import MooncakeFailed, MooncakeRefused
from penstock.runtime.slot_mooncake import SlotMooncake
from support.http_server import free_port
from support.mooncake import Mooncake
from support.waiting import SELDOM, until

SLOT = 1 << 20
# The master finds out soon that a client has gone. It may think so of one that is slow, too.
SOON = "--client_ttl=2"


def name(number: int) -> tuple[int, bytes]:
    return number, bytes(range(32))


@contextlib.contextmanager
def cluster(folder: Path, *settings: str, **options: int) -> Iterator[Mooncake]:
    found = Mooncake(folder, *settings, **options)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mooncake]:
    """A cluster that keeps running."""
    with cluster(tmp_path_factory.mktemp("m")) as found:
        yield found


def store_at(url: str, part: str = "part") -> SlotMooncake:
    return SlotMooncake(parse_store(url), part, SLOT)


def process_of(store: SlotMooncake) -> int:
    found = store._client.process_id
    assert found is not None
    return found


def works(store: SlotMooncake, number: int) -> bool:
    """Whether a value is written and read; what fails is tried again."""
    with contextlib.suppress(MooncakeFailed):
        store.put(name(number), b"works")
        return store.get(name(number), SLOT) == b"works"
    return False


def test_a_client_that_is_killed_is_started_again(lasting: Mooncake) -> None:
    ours, theirs = store_at(lasting.url), store_at(lasting.url)
    ours.put(name(1), b"x")
    assert theirs.get(name(1), SLOT) == b"x"
    os.kill(process_of(theirs), signal.SIGKILL)
    os.waitid(os.P_PID, process_of(theirs), os.WEXITED | os.WNOWAIT)
    assert theirs.get(name(1), SLOT) == b"x" and name(1) in theirs.names()


def test_a_client_that_is_never_set_up_is_given_up(lasting: Mooncake, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(lasting.url, "hurried")
    with monkeypatch.context() as hurried:
        # In which no process starts.
        hurried.setattr(mooncake_client, "_START_SECONDS", 0.001)
        with pytest.raises(MooncakeFailed, match="has not answered"):
            store.names()
    assert store._client.process_id is None and works(store, 1)


def test_mooncake_is_loaded_by_the_client_alone(lasting: Mooncake) -> None:
    store_at(lasting.url).names()
    assert "mooncake.store" not in sys.modules


def test_a_client_ends_with_the_process_that_it_is_for(lasting: Mooncake) -> None:
    begin = (
        "import sys, os; from penstock.configuration.stores import parse_store;"
        "from penstock.runtime.slot_mooncake import SlotMooncake;"
        "store = SlotMooncake(parse_store(sys.argv[1]), 'part', 1 << 20); store.names();"
        "print(store._client.process_id, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", begin, lasting.url], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    client = int(done.stdout)
    until(lambda: not psutil.pid_exists(client) or psutil.Process(client).status() == psutil.STATUS_ZOMBIE)


def test_a_value_that_was_no_good_is_replaced_while_others_have_read_it(lasting: Mooncake) -> None:
    ours, theirs = store_at(lasting.url, "replaced"), store_at(lasting.url, "replaced")
    ours.put(name(1), b"spoiled")
    assert theirs.get(name(1), SLOT) == b"spoiled"
    # Mooncake keeps it for those who may be reading it.
    ours.put(name(1), b"anew")
    assert ours.get(name(1), SLOT) == b"spoiled"
    ours.put(name(1), b"anew")
    assert theirs.get(name(1), SLOT) == b"anew"


def test_large_slots_on_several_threads(lasting: Mooncake) -> None:
    size = 12 << 20
    store = SlotMooncake(parse_store(lasting.url), "large", size)
    values = [os.urandom(size) for _ in range(store.parallel)]
    same: list[bool] = []

    def write_and_read(number: int) -> None:
        store.put(name(number), values[number])
        same.extend(store.get(name(number), size) == values[number] for _ in range(3))

    threads = [threading.Thread(target=write_and_read, args=(each,)) for each in range(store.parallel)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert same == [True] * 3 * store.parallel


def test_memory_that_goes_is_a_miss(tmp_path: Path) -> None:
    with cluster(tmp_path, SOON) as mooncake:
        store = store_at(mooncake.url)
        for number in range(3):
            until(lambda number=number: works(store, number), pause=SELDOM)
        mooncake.kill_memory()
        # The master does not know it yet, or does.
        assert [store.get(name(number), SLOT) for number in range(3)] == [None] * 3
        until(lambda: not store.names(), pause=SELDOM)
        mooncake.start()
        until(lambda: works(store, 4), pause=SELDOM)


def test_memory_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    with cluster(tmp_path) as mooncake:
        store = store_at(mooncake.url)
        store.put(name(1), b"x" * SLOT)
        assert mooncake.memory is not None
        mooncake.memory.send_signal(signal.SIGSTOP)
        with pytest.raises(MooncakeFailed, match="has not answered"):
            store.get(name(1), SLOT)
        mooncake.memory.send_signal(signal.SIGCONT)
        until(lambda: works(store, 2), pause=SELDOM)


def test_servers_lend_memory_themselves(tmp_path: Path) -> None:
    """And take it along."""
    with cluster(tmp_path, SOON, lent=0) as mooncake:
        alone = store_at(mooncake.url)
        with pytest.raises(MooncakeFailed, match="has no room; lend it memory with segment=SIZE"):
            alone.put(name(1), b"x")
        lends = store_at(f"{mooncake.url}&segment=64MiB")
        until(lambda: works(lends, 1) and alone.get(name(1), SLOT) == b"works", pause=SELDOM)
        os.kill(process_of(lends), signal.SIGKILL)
        assert alone.get(name(1), SLOT) is None
        until(lambda: not alone.names(), pause=SELDOM)
        until(lambda: works(lends, 2) and alone.get(name(2), SLOT) == b"works", pause=SELDOM)


def test_a_client_that_was_given_up_comes_back(tmp_path: Path) -> None:
    """It was stopped until the master had given its memory up."""
    with cluster(tmp_path, SOON, lent=0) as mooncake:
        store = store_at(f"{mooncake.url}&segment=64MiB")
        until(lambda: works(store, 1), pause=SELDOM)
        os.kill(process_of(store), signal.SIGSTOP)
        until(lambda: not mooncake.told("get_all_segments"), pause=SELDOM)
        os.kill(process_of(store), signal.SIGCONT)
        until(lambda: works(store, 2), pause=SELDOM)


def test_a_master_that_is_killed_forgets_and_goes_on(tmp_path: Path) -> None:
    """What it knew cannot be read any more, or is what was written: memory is written again under other names."""
    with cluster(tmp_path) as mooncake:
        stores = [store_at(mooncake.url), store_at(mooncake.url)]
        written = {number: os.urandom(SLOT) for number in range(20)}
        for number in range(10):
            stores[0].put(name(number), written[number])
        mooncake.kill_master()
        for store in stores:
            with pytest.raises(MooncakeFailed):
                store.get(name(1), SLOT)
        mooncake.start()
        for store in stores:
            until(lambda store=store: works(store, 100), pause=SELDOM)
        for number in range(10, 20):
            stores[1].put(name(number), written[number])
        for number in range(20):
            for store in stores:
                assert store.get(name(number), SLOT) in (written[number], None)
        assert stores[0].get(name(19), SLOT) == written[19]


def test_a_full_store_evicts(tmp_path: Path) -> None:
    """What is listed and gone is a miss."""
    with cluster(tmp_path, lent=64 << 20) as mooncake:
        store = store_at(mooncake.url)
        listed: set[object] = set()
        numbers = itertools.count()

        def write_one_more() -> bool:
            number = next(numbers)
            with contextlib.suppress(MooncakeFailed):
                store.put(name(number), bytes([number % 251]) * SLOT)
            listed.update(store.names())
            return len(listed) > 100

        # Of which the memory has room for 64.
        until(write_one_more)
        assert 0 < len(store.names()) <= 64
        for number in range(next(numbers)):
            assert store.get(name(number), SLOT) in (bytes([number % 251]) * SLOT, None)


def test_a_metadata_server_can_be_used(tmp_path: Path) -> None:
    port = free_port()
    servers = ("--enable_http_metadata_server=true", f"--http_metadata_server_port={port}")
    with cluster(tmp_path, *servers, lent=0) as mooncake:
        url = f"{mooncake.url}&metadata=http://127.0.0.1:{port}/metadata"
        lends, other = store_at(f"{url}&segment=64MiB"), store_at(url)
        lends.put(name(1), b"x" * SLOT)
        assert other.get(name(1), SLOT) == b"x" * SLOT


def test_a_metadata_server_that_is_away_is_told(lasting: Mooncake) -> None:
    store = store_at(f"{lasting.url}&metadata=http://127.0.0.1:{free_port()}/metadata")
    with pytest.raises(MooncakeFailed, match="cannot be set up with metadata=http://127"):
        store.names()


def test_a_master_that_comes_later_is_found(tmp_path: Path) -> None:
    with cluster(tmp_path) as mooncake:
        mooncake.kill()
        store = store_at(mooncake.url)
        for call in (store.names, lambda: store.get(name(1), 1)):
            with pytest.raises(MooncakeFailed, match=r"master at 127\S+ cannot be reached \(Connection refused\)"):
                call()
        mooncake.start()
        assert works(store, 1)


def test_a_master_whose_name_is_unknown_is_told(lasting: Mooncake) -> None:
    with pytest.raises(MooncakeFailed, match=r"master at no\.such\.host\.invalid:50051 cannot be reached"):
        store_at("mooncake://no.such.host.invalid").names()


class NotFound(http.server.BaseHTTPRequestHandler):
    """Says so."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


def test_keys_that_cannot_be_listed_are_told(lasting: Mooncake) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), NotFound) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        store = store_at(f"mooncake://{lasting.address}?metrics_port={other.server_port}")
        with pytest.raises(MooncakeFailed, match=f"at its metrics_port, 127.0.0.1:{other.server_port}: HTTP 404"):
            store.names()
        other.shutdown()
    # What listens there does not speak HTTP.
    store = store_at(f"mooncake://{lasting.address}?metrics_port={lasting.address.rpartition(':')[2]}")
    with pytest.raises(MooncakeFailed, match="the keys cannot be listed"):
        store.names()


def test_libraries_that_mooncake_lacks_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mooncake"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "store.py").write_text("raise ImportError('libibverbs.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(MooncakeRefused, match=r"libibverbs\.so\.1: .*on Debian, it needs the packages libcurl4"):
        store_at("mooncake://localhost").names()
