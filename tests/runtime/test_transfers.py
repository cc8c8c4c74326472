"""Real transfer engines over TCP, whose processes and partners are killed and stopped."""

import contextlib
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock.cache.shelf_room import Name
from penstock.core.handover import Transport
from penstock.runtime import health, transfer_engines, transfers
from penstock.runtime.offer_cells import Cells
from penstock.runtime.offer_server import OfferServer
from penstock.runtime.offers import Offers
from penstock.runtime.partner import PartnerFailed
from penstock.runtime.partner_transfer import TransferPartner
from penstock.runtime.partner_wire import Reach
from penstock.runtime.transfers import TransferFailed, Transfers
from support.transports import ENGINES, over_tcp
from support.waiting import PATIENCE, until

SLOT = 1 << 20
VALUE = bytes(range(256)) * (SLOT // 256)


def name(number: int) -> Name:
    return 0, b"t" * 16 + number.to_bytes(16, "big")


class Side:
    """A replica that offers.

    Attributes:
        server: where it is asked.
    """

    def __init__(self, transport: Transport) -> None:
        self.offers = Offers(Cells(SLOT, 8 * SLOT))
        self.transfers = Transfers(transport, self.offers.cells, "127.0.0.1", serves=True)
        self.server = OfferServer(self.offers, "127.0.0.1", 0, lambda: self.transfers.reach)


@pytest.fixture(scope="module", params=ENGINES)
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    transport: Transport = request.param
    with over_tcp(transport), pytest.MonkeyPatch.context() as patched:
        patched.setattr(transfers, "_READ_SECONDS", 1.0)
        patched.setattr(transfers, "_ANSWER_SECONDS", 2.0)
        yield transport


@pytest.fixture(scope="module")
def offering(transport: Transport) -> Iterator[Side]:
    side = Side(transport)
    for number in range(6):
        side.offers.put(name(number), VALUE[number:] + VALUE[:number])
    yield side
    side.transfers.close()


@pytest.fixture(scope="module")
def reading(transport: Transport) -> Iterator[Transfers]:
    found = Transfers(transport, Cells(SLOT, 4 * SLOT), serves=False)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_REST_SECONDS", 0.0)
    monkeypatch.setattr(health, "_LONGEST_REST", 0.0)


def process_of(side: Transfers) -> int:
    found = side.process_id
    assert found is not None
    return found


def running_of(side: Transfers) -> transfers._Running:
    found = side._running
    assert found is not None
    return found


def by_engine(partner: TransferPartner, number: int, caplog: pytest.LogCaptureFixture) -> bool:
    """Whether a slot that is right has come by the engine, and not over TCP."""
    caplog.clear()
    assert partner.pull(name(number), SLOT) == VALUE[number:] + VALUE[:number]
    return not partner._health._failing


def test_slots_come_by_the_engine(
    offering: Side, reading: Transfers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    partner = TransferPartner(offering.server.address, reading)
    with monkeypatch.context() as alone:
        # Nothing comes over TCP.
        alone.setattr(partner._far, "pull", None)
        assert all(by_engine(partner, number, caplog) for number in range(6))
        assert partner.pull(name(7), SLOT) is None and partner.pull(name(0), SLOT - 1) is None
        partner.close()
        assert by_engine(partner, 0, caplog)
        wrong = list[int]()

        def pull(first: int) -> None:
            for number in range(24):
                each = (first + number) % 6
                if partner.pull(name(each), SLOT) != VALUE[each:] + VALUE[:each]:
                    wrong.append(each)

        threads = [threading.Thread(target=pull, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not wrong
    partner.renew([name(0)], 20.0)
    partner.release([name(0)])
    partner.close()
    # Where both are on this machine, too, engines are loaded by their own processes alone.
    assert not {"mooncake.engine", "nixl", "nixl_cu12", "nixl_cu13"} & sys.modules.keys()


def test_an_engine_that_ends_on_either_side_is_started_again_and_slots_come_over_tcp_meanwhile(
    offering: Side, reading: Transfers, caplog: pytest.LogCaptureFixture
) -> None:
    partner = TransferPartner(offering.server.address, reading)
    assert by_engine(partner, 0, caplog)
    for side in (reading, offering.transfers):
        before = process_of(side)
        os.kill(before, signal.SIGKILL)
        until(lambda side=side, before=before: side.process_id not in (before, None))
        # What is known of it is of before; then its memory is asked for again.
        until(lambda: by_engine(partner, 1, caplog))
    partner.close()


def test_an_engine_that_does_not_answer_costs_some_seconds_and_no_slot(
    offering: Side, reading: Transfers, caplog: pytest.LogCaptureFixture
) -> None:
    partner = TransferPartner(offering.server.address, reading)
    assert by_engine(partner, 0, caplog)
    for side in (offering.transfers, reading):
        stopped = process_of(side)
        os.kill(stopped, signal.SIGSTOP)
        # Threads go on until the first one has been told.
        until(lambda stopped=stopped: psutil.Process(stopped).status() == psutil.STATUS_STOPPED)
        try:
            with caplog.at_level(logging.WARNING):
                assert not by_engine(partner, 2, caplog)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped, signal.SIGCONT)
        assert f"cannot be read by {reading.transport}" in caplog.text
        until(lambda: by_engine(partner, 2, caplog))
    partner.close()


def test_a_partner_that_hangs_takes_no_other_one_along(
    transport: Transport,
    offering: Side,
    reading: Transfers,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = Side(transport)
    other.offers.put(name(2), VALUE[2:] + VALUE[:2])
    hanging, fine = (TransferPartner(each.server.address, reading) for each in (offering, other))
    assert by_engine(hanging, 2, caplog) and by_engine(fine, 2, caplog)
    # The engine waits longer for it than what asks the engine.
    monkeypatch.setattr(transfers, "_ANSWER_SECONDS", 0.2)
    before, stopped = process_of(reading), process_of(offering.transfers)
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: psutil.Process(stopped).status() == psutil.STATUS_STOPPED)
    try:
        assert not by_engine(hanging, 2, caplog)
        assert "does not answer in time" in caplog.text
        # Nothing comes over TCP.
        monkeypatch.setattr(fine._far, "pull", None)
        assert all(by_engine(fine, 2, caplog) for _ in range(2 * reading._cells.count))
    finally:
        os.kill(stopped, signal.SIGCONT)
    until(lambda: by_engine(hanging, 2, caplog))
    until(lambda: by_engine(fine, 2, caplog) and running_of(reading).late == {})
    assert reading.process_id == before
    hanging.close()
    fine.close()
    other.transfers.close()


def test_an_engine_that_hangs_is_started_again(
    offering: Side, reading: Transfers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    partner, hung = TransferPartner(offering.server.address, reading), process_of(reading)
    os.kill(hung, signal.SIGSTOP)
    with monkeypatch.context() as short:
        short.setattr(transfers, "_ANSWER_SECONDS", 0.2)
        short.setattr(transfers, "_HUNG_SECONDS", 0.3)
        until(lambda: not by_engine(partner, 2, caplog) and reading.process_id != hung)
    until(lambda: by_engine(partner, 2, caplog))
    partner.close()


def test_an_engine_starts_again_once_there_is_room_for_it(
    offering: Side, reading: Transfers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the process has no descriptors left, or the machine no room for a thread."""
    partner, faults = TransferPartner(offering.server.address, reading), ["sockets", "thread"]
    pair, start = socket.socketpair, threading.Thread.start

    def no_sockets() -> tuple[socket.socket, socket.socket]:
        if "sockets" in faults:
            faults.remove("sockets")
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return pair()

    def no_thread(thread: threading.Thread) -> None:
        if thread.name == "transfer_process-log" and "thread" in faults:
            faults.remove("thread")
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(socket, "socketpair", no_sockets)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    before = process_of(reading)
    os.kill(before, signal.SIGKILL)
    until(lambda: reading.process_id not in (before, None))
    assert not faults
    until(lambda: by_engine(partner, 1, caplog))
    partner.close()


def test_a_replica_that_is_gone_is_a_miss(transport: Transport, reading: Transfers) -> None:
    """Killed with its engine, as by the kernel, while it is read from."""
    program = (
        "import sys, time;"
        "from penstock.runtime.offer_cells import Cells; from penstock.runtime.offers import Offers;"
        "from penstock.runtime.offer_server import OfferServer; from penstock.runtime.transfers import Transfers;"
        f"offers = Offers(Cells({SLOT}, {4 * SLOT})); offers.put((0, bytes(32)), b'x' * {SLOT});"
        f"found = Transfers('{transport}', offers.cells, '127.0.0.1', serves=True);"
        "print(OfferServer(offers, '127.0.0.1', 0, lambda: found.reach).address, found.process_id, flush=True);"
        "time.sleep(3600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        address, engine = running.stdout.readline().split()
        partner = TransferPartner(address, reading)
        assert partner.pull((0, bytes(32)), SLOT) == b"x" * SLOT and not partner._health._failing
        running.kill()
    # The engine ends with the process that it is for.
    until(lambda: not psutil.pid_exists(int(engine)) or psutil.Process(int(engine)).status() == "zombie")
    with pytest.raises(PartnerFailed):
        partner.pull((0, bytes(32)), SLOT)
    partner.close()


def test_what_is_no_slot_is_not_read(offering: Side, reading: Transfers) -> None:
    reach = offering.transfers.reach
    assert reach is not None
    for start, size in ((0, SLOT + 1), (-1, 1), (0, -1)):
        with pytest.raises(TransferFailed, match="are no slot"):
            reading.read(reach, start, size)
    # Beyond what is offered, and of an engine that is none.
    for strange in (Reach(reach.transport, reach.at, reach.start + (1 << 40)), Reach(reach.transport, b"x", 0)):
        with pytest.raises(TransferFailed):
            reading.read(strange, 0, 10)
    first = offering.offers.where(name(0), SLOT)
    assert first is not None and reading.read(reach, *first) == VALUE


def test_a_partner_without_this_engine_is_asked_over_tcp(
    transport: Transport, reading: Transfers, caplog: pytest.LogCaptureFixture
) -> None:
    offers = Offers(Cells(10, 100))
    offers.put(name(0), b"here")
    other = Reach("another", b"", 0)
    for reach, why in ((None, "it offers none so"), (other, "it has another")):
        caplog.clear()
        partner = TransferPartner(OfferServer(offers, "127.0.0.1", 0, lambda reach=reach: reach).address, reading)
        assert partner.pull(name(0), 10) == partner.pull(name(0), 10) == b"here"
        # Once.
        assert caplog.text.count(f"cannot be read by {transport} ({why}): they come over TCP until they can.") == 1
        partner.close()


def test_what_cannot_start_is_told(transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_engines, "NIXL_PACKAGES", ())
    monkeypatch.setattr(transfers, "is_installed", lambda _transport: True)
    if transport == "nixl":
        monkeypatch.setenv("UCX_TLS", "none_such")
    else:
        package = tmp_path / "mooncake"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "engine.py").write_text("raise ImportError('libibverbs.so.1: cannot open shared object file')\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(TransferFailed, match="NIXL|on Debian, it needs the packages libcurl4"):
        Transfers(transport, Cells(1, 1), serves=True)
    monkeypatch.undo()


def test_an_engine_that_is_not_installed_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "is_installed", lambda _transport: False)
    with pytest.raises(ImportError):
        Transfers("nixl", Cells(1, 1), serves=True)
