"""What one replica offers and another pulls: leases, room, and connections of real sockets."""

import os
import socket
import threading
from collections.abc import Sequence

import pytest

from penstock.cache.shelf_room import Name
from penstock.core.errors import ConfigurationError
from penstock.core.handover import LEASE_SECONDS
from penstock.runtime import offer_server, partner_tcp
from penstock.runtime.offer_cells import Cells, MappedCells
from penstock.runtime.offer_server import OfferServer
from penstock.runtime.offers import Offers
from penstock.runtime.partner import PartnerFailed
from penstock.runtime.partner_near import NearPartner
from penstock.runtime.partner_tcp import TcpPartner
from penstock.runtime.partner_wire import Find, Hello, encode, receive, send
from penstock.runtime.slot_peers import SlotPeers
from support.waiting import PATIENCE, until

TAG = b"t" * 16


def name(number: int) -> Name:
    return 0, TAG + number.to_bytes(16, "big")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_leased_stays_and_the_rest_makes_room() -> None:
    clock = Clock()
    offers = Offers(Cells(10, 30), clock)
    assert [offers.put(name(each), b"x" * 10) for each in range(3)] == [[], [], []]
    assert offers.keep(name(0), 30.0) and not offers.keep(name(7), 30.0)
    clock.now += 1.0
    assert offers.put(name(3), b"y" * 10) == [name(1)]
    assert offers.keep(name(2), 10.0) and offers.keep(name(3), 10.0)
    # All is leased: what comes has no room, and no partner waits for it.
    assert offers.put(name(4), b"z" * 10) == (name(4),)
    assert offers.find([name(0), name(4)], 1, 600.0, "one") == [True, False]
    clock.now += 11.0
    assert offers.put(name(4), b"z" * 10) in ([name(2)], [name(3)])
    assert offers.kept().keys() == {name(0)}
    offers.release(name(0), "one")
    assert not offers.kept() and offers.get(name(0), 10) == b"x" * 10 and offers.get(name(0), 9) is None


def test_a_lease_never_becomes_shorter_by_being_asked_for_again() -> None:
    clock = Clock()
    offers = Offers(Cells(10, 100), clock)
    offers.put(name(0), b"x")
    offers.keep(name(0), 30.0)
    offers.keep(name(0), 1.0)
    offers.put(name(0), b"x")
    offers.get(name(0), 1)
    assert offers.kept() == {name(0): 30.0}


def test_a_lease_ends_once_all_have_given_it_back() -> None:
    clock = Clock()
    offers = Offers(Cells(10, 100), clock)
    offers.put(name(0), b"x")
    offers.keep(name(0), 30.0)
    assert offers.find([name(0)], 1, 0.0, "one") == offers.find([name(0)], 1, 0.0, "two") == [True]
    offers.release(name(0), "one")
    assert offers.kept() == {name(0): 30.0}
    clock.now += 10.0
    # What another one has renewed for itself alone goes with it.
    offers.keep(name(0), 60.0, "one")
    offers.release(name(0), "one")
    assert offers.kept() == {name(0): 20.0}
    offers.release(name(0), "two")
    assert not offers.kept() and not offers._holders
    # Nothing is held that is not leased.
    assert offers.find([name(0)], 1, 0.0, "two") == [True] and not offers._holders


@pytest.fixture
def offers() -> Offers:
    return Offers(Cells(1 << 18, 1 << 22))


@pytest.fixture
def address(offers: Offers) -> str:
    return OfferServer(offers, "127.0.0.1", 0).address


@pytest.mark.parametrize("kind", [TcpPartner, NearPartner])
def test_a_partner_is_told_what_there_is(
    kind: type[TcpPartner] | type[NearPartner], offers: Offers, address: str
) -> None:
    large = bytes(range(256)) * 1024
    offers.put(name(0), large)
    partner = kind(address)
    assert partner.find([name(0), name(1)], 0, 0.0) == [True, False]
    assert partner.pull(name(0), len(large)) == large
    assert partner.pull(name(0), len(large) - 1) is None and partner.pull(name(1), 10) is None
    partner.renew([name(0)], 20.0)
    assert 19.0 < offers.kept()[name(0)] <= 20.0
    partner.release([name(0)])
    assert not offers.kept()
    # Once more on the connection that is there, which others may use by then.
    assert partner.find([name(0)], 1, 600.0) == [True]
    partner.close()


def test_memory_is_mapped_on_one_machine_and_else_slots_come_over_the_connection(
    offers: Offers, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers.put(name(0), b"here")
    near = NearPartner(address)
    assert near.pull(name(0), 10) == b"here" and isinstance(near._cells, MappedCells)
    near.close()
    assert near._cells is None
    assert near.pull(name(0), 10) == b"here" and isinstance(near._cells, MappedCells)
    near.close()
    for place, nonce in (
        ((1 << 30, 0), offers.cells.nonce),
        (offers.cells.place, bytes(32)),
        ((os.getpid(), 0), bytes(32)),
    ):
        with pytest.raises(OSError):
            MappedCells(place, nonce)
    monkeypatch.setattr(offers.cells, "nonce", b"another machine's, by the same place")
    far = NearPartner(address)
    assert far.pull(name(0), 10) == b"here" and far._cells is False
    far.close()


def test_cells_are_used_again() -> None:
    offers = Offers(Cells(10, 30))
    for number in range(20):
        assert not set(offers.put(name(number), b"%d" % number)) & {name(number)}
        assert offers.get(name(number), 10) == b"%d" % number
    assert offers.put(name(19), b"again") == [] and offers.get(name(19), 10) == b"again"
    assert len(offers.names()) == 3 and offers.put(name(30), b"longer than a cell") == (name(30),)


def test_who_asks_waits_for_what_is_on_its_way(offers: Offers, address: str) -> None:
    partner, found = TcpPartner(address), list[Sequence[bool]]()
    asking = threading.Thread(target=lambda: found.append(partner.find([name(0), name(1)], 1, 4.0)))
    asking.start()
    offers.put(name(0), b"x")
    offers.put(name(1), b"y")
    asking.join()
    assert found == [[True, True]]
    partner.close()


def test_a_partner_that_is_gone_or_lies_has_failed(address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        place = f"127.0.0.1:{nobody.getsockname()[1]}"
    with pytest.raises(PartnerFailed):
        TcpPartner(place).find([name(0)], 0, 0.0)
    with pytest.raises(ConfigurationError, match="cannot be listened at"):
        OfferServer(Offers(Cells(1, 1)), "127.0.0.1", int(address.rpartition(":")[2]))
    # Of another version, or no message at all: the connection ends.
    for strange in (encode(Hello(999)), b"\xff" * 20):
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as end:
            send(end, strange)
            with pytest.raises(OSError):
                send(end, encode(Hello()))
                receive(end, 10)


class Told:
    """A partner in memory that remembers what it was told."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.renewed: list[Name] = []
        self.released: list[Name] = []
        self.closed = False
        self.pulled = 0

    def find(self, names: Sequence[Name], awaited: int, seconds: float) -> list[bool]:
        if self.address == "gone":
            raise PartnerFailed("it is gone")
        return [each != name(9) for each in names]

    def pull(self, name: Name, most: int) -> bytes | None:
        self.pulled += 1
        return self.address.encode()

    def renew(self, names: Sequence[Name], seconds: float) -> None:
        assert seconds == LEASE_SECONDS
        self.renewed += names

    def release(self, names: Sequence[Name]) -> None:
        self.released += names

    def close(self) -> None:
        self.closed = True


def test_slots_are_known_from_a_request_on_until_it_leaves() -> None:
    partners: dict[str, Told] = {}

    def connect(address: str) -> Told:
        return partners.setdefault(address, Told(address))

    peers = SlotPeers(connect, heartbeat=0.005)
    both = [name(0), name(1)]
    assert peers.find(1, "one", [*both, name(9)], 1, 1.0) == (*both,)
    assert peers.find(2, "two", both[:1], 1, 1.0) == (name(0),)
    assert not peers.find(3, "gone", both, 1, 1.0)
    assert peers.get(name(0), 10) in (b"one", b"two") and peers.get(name(9), 10) is None
    until(lambda: {*partners["one"].renewed} == {*both} and partners["two"].renewed)
    assert peers.leave(1) == [name(1)] and peers.leave(1) == []
    until(lambda: {*partners["one"].released} == {*both})
    assert peers.get(name(0), 10) == b"two" and peers.get(name(1), 10) is None
    assert peers.leave(2) == [name(0)] and peers.get(name(0), 10) is None
    until(lambda: partners["two"].released == [name(0)])
    # Others that come are remembered, the oldest are not.
    for number in range(70):
        peers.find(10 + number, f"new {number}", both, 1, 1.0)
        peers.leave(10 + number)
    assert partners["one"].closed and not partners["new 69"].closed
    with pytest.raises(PartnerFailed):
        peers.put(name(0), b"x")


def test_partners_that_no_request_needs_let_go_of_what_they_have() -> None:
    partner = Told("one")
    peers = SlotPeers(lambda _address: partner, heartbeat=0.005)
    peers.find(1, "one", [name(0)], 1, 1.0)
    until(lambda: partner.renewed)
    assert not partner.closed
    peers.leave(1)
    until(lambda: partner.closed)


def test_a_partner_that_begins_anew_at_its_place_has_another_memory() -> None:
    servers = [Offers(Cells(10, 100)), Offers(Cells(10, 100))]
    servers[0].put(name(1), b"of before")
    servers[1].put(name(0), b"another")
    servers[1].put(name(1), b"anew")
    addresses = [OfferServer(each, "127.0.0.1", 0).address for each in servers]
    near = NearPartner(addresses[0])
    assert near.pull(name(1), 10) == b"of before"
    before = near._cells
    near._far.close()
    near._far._place = TcpPartner(addresses[1])._place
    assert near.pull(name(1), 10) == b"anew" and near._cells is not before
    near.close()


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
def test_times_that_are_no_numbers_are_refused(seconds: float, offers: Offers, address: str) -> None:
    offers.put(name(0), b"x")
    partner = TcpPartner(address)
    with pytest.raises(PartnerFailed):
        partner.renew([name(0)], seconds)
    with pytest.raises(PartnerFailed):
        partner.ask(Find([name(1)], 1, seconds), 100)
    assert partner.find([name(0)], 1, 0.0) == [True] and not offers.kept()
    partner.close()


def test_what_does_not_say_what_it_is_may_send_little(address: str) -> None:
    for strange in (encode(Find([name(0)], 0, 0.0)), b"x" * 1000):
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as end:
            send(end, strange)
            with pytest.raises(OSError):
                receive(end, 10)


def test_who_finds_no_room_keeps_no_other_one_out(
    offers: Offers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(offer_server, "_REST_SECONDS", 0.0)
    server = OfferServer(offers, "127.0.0.1", 0)
    faults, start = ["thread", "file"], threading.Thread.start

    def starts(thread: threading.Thread) -> None:
        if thread.name == "penstock-offer" and "thread" in faults:
            faults.remove("thread")
            server._listener = Full(server._listener)  # type: ignore[assignment]
            raise RuntimeError("can't start new thread")
        start(thread)

    class Full:
        def __init__(self, listener: socket.socket) -> None:
            self._listener = listener

        def accept(self) -> tuple[socket.socket, object]:
            if faults:
                faults.clear()
                raise OSError("Too many open files")
            return self._listener.accept()

    monkeypatch.setattr(threading.Thread, "start", starts)
    partner = TcpPartner(server.address)
    with pytest.raises(PartnerFailed):
        partner.find([name(0)], 0, 0.0)
    assert partner.find([name(0)], 0, 0.0) == [False] and not faults
    partner.close()
    assert "can't start new thread" in caplog.text and "Too many open files" in caplog.text


def test_one_that_is_silent_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partner_tcp, "_ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        partner = TcpPartner(f"127.0.0.1:{listener.getsockname()[1]}")
        partner._idle.append(partner._connect())
        listener.accept()[0].close()
        # What was closed since is no reason; what says nothing is.
        listener.settimeout(PATIENCE)
        with pytest.raises(PartnerFailed):
            partner.pull(name(0), 10)
        silent, _ = listener.accept()
        partner._idle.append(partner._connect())
        with listener.accept()[0], pytest.raises(PartnerFailed, match="timed out"):
            partner.pull(name(0), 10)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
        silent.close()
