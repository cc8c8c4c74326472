"""Answers replicas that decode: what is offered here, and what it is (`runtime/partner_wire.py`)."""

import logging
import socket
import threading
import time
from collections.abc import Callable
from math import isfinite

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.runtime.offers import Offers
from penstock.runtime.partner import PartnerFailed
from penstock.runtime.partner_wire import (
    MOST_HELLO,
    MOST_MESSAGE,
    VERSION,
    Find,
    Hello,
    Mapped,
    Memory,
    Placed,
    Point,
    Pull,
    Question,
    Reach,
    Release,
    Renew,
    encode,
    questions,
    receive,
    send,
)

logger = logging.getLogger("penstock.handover")

# Connections at a time; each partner has some.
_MOST_CONNECTIONS = 256
# A partner that has nothing to ask renews its leases more often than that.
_SILENT_SECONDS = 120.0
# The longest that a question waits here for slots, and that a lease is made for, whatever it says.
_MOST_WAIT, _MOST_LEASE = 5.0, 300.0
# Until connections are taken again where the machine had no room for one.
_REST_SECONDS = 1.0


class OfferServer:
    """Listens until the process ends.

    Args:
        reach: says how a transfer engine reads what is offered; None where none does.

    Attributes:
        address: where others reach it, as host and port.
    """

    def __init__(self, offers: Offers, host: str, port: int, reach: Callable[[], Reach | None] = lambda: None) -> None:
        """Raises ConfigurationError where it cannot listen there."""
        self._offers, self._reach = offers, reach
        try:
            self._listener = socket.create_server((host, port), family=_family(host), backlog=_MOST_CONNECTIONS)
        except OSError as error:
            raise ConfigurationError(
                f"--kv-offer-at {host}:{port} cannot be listened at: {error.strerror or error}; give another one."
            ) from error
        self.address = f"[{host}]" if ":" in host else host
        self.address += f":{self._listener.getsockname()[1]}"
        self._room = threading.Semaphore(_MOST_CONNECTIONS)
        threading.Thread(target=self._accept, name="penstock-offers", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError as error:
                self._rest(error)
                continue
            if not self._room.acquire(blocking=False):
                end.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(end,), name="penstock-offer", daemon=True).start()
            except RuntimeError as error:
                end.close()
                self._room.release()
                self._rest(error)

    def _rest(self, error: Exception) -> None:
        """The machine has no file or thread left: the next ones may find some."""
        logger.warning("A replica that asks for blocks of prompts at %s finds no room: %s.", self.address, error)
        time.sleep(_REST_SECONDS)

    def _serve(self, end: socket.socket) -> None:
        try:
            with end:
                end.settimeout(_SILENT_SECONDS)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                first = questions.decode(receive(end, MOST_HELLO) or b"")
                if not isinstance(first, Hello) or first.version != VERSION:
                    return
                while (content := receive(end, MOST_MESSAGE)) is not None:
                    send(end, self._answer(questions.decode(content), first.holder))
        except (OSError, PartnerFailed, msgspec.DecodeError) as error:
            # A partner that goes needs no answer, and one that is none gets none.
            logger.debug("a connection for blocks of prompts has ended: %s", error)
        finally:
            self._room.release()

    def _answer(self, question: Question, holder: str) -> bytes | None:
        offers = self._offers
        match question:
            case Find(names, awaited, seconds):
                last = max(0, min(awaited, len(names)))
                found = offers.find(names, last, _bounded(seconds, _MOST_WAIT), holder)
                return encode(found)
            case Pull(name, most):
                return offers.get(name, most)
            case Memory():
                return encode(Mapped(offers.cells.place, offers.cells.nonce, self._reach()))
            case Point(name, most):
                place = offers.where(name, most)
                return None if place is None else encode(Placed(*place, offers.cells.nonce))
            case Renew(names, seconds):
                for name in names:
                    offers.keep(name, _bounded(seconds, _MOST_LEASE), holder)
            case Release(names):
                for name in names:
                    offers.release(name, holder)
        return b""


def _bounded(seconds: float, most: float) -> float:
    """Between 0 and `most`. Raises PartnerFailed for what is no number."""
    if not isfinite(seconds):
        raise PartnerFailed(f"it asks for {seconds} seconds")
    return max(0.0, min(seconds, most))


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
