"""A partner whose slots a transfer engine reads from its memory; all else is asked of it over a connection."""

import threading

import msgspec

from penstock.cache.shelf_room import Name
from penstock.runtime.health import Health
from penstock.runtime.partner import PartnerFailed
from penstock.runtime.partner_tcp import TcpPartner
from penstock.runtime.partner_wire import MOST_PLACE, Mapped, Memory, Placed, Point
from penstock.runtime.transfers import TransferFailed, Transfers

_decode_mapped = msgspec.msgpack.Decoder(Mapped).decode
_decode_place = msgspec.msgpack.Decoder(Placed).decode


class TransferPartner:
    """A replica at a host and port. Slots come over TCP while the engine cannot read them, which is told once."""

    def __init__(self, address: str, transfers: Transfers) -> None:
        self._far, self._transfers = TcpPartner(address), transfers
        self._lock = threading.Lock()
        self._memory: Mapped | None = None
        self._health = Health(
            f"Blocks of the replica at {address}",
            f"read by {transfers.transport}",
            "they come over TCP until they can",
            (TransferFailed,),
        )
        self.find, self.renew, self.release = self._far.find, self._far.renew, self._far.release

    def pull(self, name: Name, most: int) -> bytes | bytearray | None:
        """A slot's value; None where it is not there, or longer than `most` bytes."""
        if self._health.rests:
            return self._far.pull(name, most)
        answer = self._far.ask(Point(name, most), MOST_PLACE)
        if answer is None:
            return None
        try:
            placed = _decode_place(answer)
            value = self._read(placed, most)
        except msgspec.DecodeError as error:
            raise PartnerFailed(f"its answer cannot be read: {error}") from None
        except TransferFailed as error:
            self._health.failed(error)
            self._leave()
            return self._far.pull(name, most)
        self._health.worked()
        return value

    def _read(self, placed: Placed, most: int) -> bytes:
        """What is at a place; of what is there meanwhile, sealing tells. Raises TransferFailed."""
        with self._lock:
            if self._memory is None or self._memory.nonce != placed.nonce:
                # It is new, or has begun anew at the same place.
                self._memory = _decode_mapped(self._far.ask(Memory(), MOST_PLACE) or b"")
            memory = self._memory
        reach, transport = memory.reach, self._transfers.transport
        if reach is None or reach.transport != transport:
            raise TransferFailed("it offers none so" if reach is None else f"it has {reach.transport}")
        if memory.nonce != placed.nonce or placed.size > most:
            raise TransferFailed("it says two things of its memory")
        return self._transfers.read(reach, placed.start, placed.size)

    def close(self) -> None:
        """Let go of connections and of where its memory is, until it is asked again."""
        self._far.close()
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._memory = None
