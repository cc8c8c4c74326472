"""A partner that may be on the same machine: slots are read from its memory then, and all else is asked of it."""

import logging
import threading

import msgspec

from penstock.cache.shelf_room import Name
from penstock.runtime.offer_cells import MappedCells
from penstock.runtime.partner import PartnerFailed
from penstock.runtime.partner_tcp import TcpPartner
from penstock.runtime.partner_wire import MOST_PLACE, Mapped, Memory, Placed, Point

logger = logging.getLogger("penstock.handover")

_decode_mapped = msgspec.msgpack.Decoder(Mapped).decode
_decode_place = msgspec.msgpack.Decoder(Placed).decode


class NearPartner:
    """A replica at a host and port, whose memory is mapped where it can be."""

    def __init__(self, address: str) -> None:
        self._address, self._far = address, TcpPartner(address)
        self._lock = threading.Lock()
        # None: not known yet; False: it is on another machine, or of another user.
        self._cells: MappedCells | bool | None = None
        self.find, self.renew, self.release = self._far.find, self._far.renew, self._far.release

    def pull(self, name: Name, most: int) -> bytes | bytearray | None:
        """A slot's value; None where it is not there, or longer than `most` bytes."""
        while (cells := self._mapped()) is not None:
            answer = self._far.ask(Point(name, most), MOST_PLACE)
            if answer is None:
                return None
            try:
                placed = _decode_place(answer)
            except msgspec.DecodeError as error:
                raise PartnerFailed(f"its answer cannot be read: {error}") from None
            if placed.nonce == cells.nonce:
                # What it gives another content meanwhile is not what was sealed.
                is_there = placed.start >= 0 and 0 <= placed.size <= most
                return cells.get(placed.start, placed.size) if is_there else None
            # It has begun anew at the same place, with another memory.
            self._leave(cells)
        return self._far.pull(name, most)

    def _mapped(self) -> MappedCells | None:
        """Its memory; None where that is not of this machine. Raises PartnerFailed."""
        with self._lock:
            if self._cells is None:
                answer = self._far.ask(Memory(), MOST_PLACE)
                try:
                    found = _decode_mapped(answer or b"")
                    self._cells = MappedCells(found.place, found.nonce)
                except (msgspec.DecodeError, OSError) as error:
                    logger.info(
                        "blocks of %s come over TCP: its memory cannot be mapped here: %s", self._address, error
                    )
                    self._cells = False
            return self._cells if isinstance(self._cells, MappedCells) else None

    def close(self) -> None:
        """Let go of its memory and of connections, until it is asked again."""
        self._far.close()
        with self._lock:
            cells = self._cells
        if isinstance(cells, MappedCells):
            self._leave(cells)

    def _leave(self, cells: MappedCells) -> None:
        # The last thread that reads it lets go of it.
        with self._lock:
            if self._cells is cells:
                self._cells = None
