"""What a replica with a role has beside its pool: blocks that it offers, or those that it pulls."""

import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from penstock.assembly.disk import needing_extra
from penstock.cache.chain import KeyFunction
from penstock.core.config import EngineConfig, HandoverConfig
from penstock.core.errors import ConfigurationError
from penstock.core.request import Request
from penstock.engine.pulling import Found
from penstock.runtime.offer_cells import Cells
from penstock.runtime.offer_server import OfferServer
from penstock.runtime.offers import Offers
from penstock.runtime.partner import Partner
from penstock.runtime.partner_near import NearPartner
from penstock.runtime.partner_transfer import TransferPartner
from penstock.runtime.slot_peers import SlotPeers
from penstock.runtime.tier import Backing
from penstock.runtime.transfers import TransferFailed, Transfers

logger = logging.getLogger("penstock.handover")

# Of what the seal of a place is made.
_OF_PLACE = b"offers at "
# For the last blocks of a prompt, which may still be on their way to where they are offered.
_FIND_SECONDS = 2.0


@dataclass(frozen=True)
class Handover:
    """A replica's part.

    Attributes:
        backing: what it offers, or pulls from; None where it has no role.
        place: where it offers; empty where it pulls.
        finds: what it pulls from; None where it offers.
    """

    backing: Backing | None = None
    place: str = ""
    finds: "Finds | None" = None


class Finds:
    """Asks partners for the blocks of prompts (`engine.pulling.Partners`).

    A place has the seal of those who have the secret, for the same model in the same form: blocks are asked for nowhere
    else, whatever a request says.
    """

    def __init__(self, peers: SlotPeers, namespace: bytes, key_of: KeyFunction) -> None:
        self._peers, self._seal = peers, partial(_seal, namespace, key_of)

    def find(self, request: Request, place: str, slots: Found, awaited: int) -> Found:
        """Which slots are there for a request; waits no longer than some seconds."""
        address, _, seal = place.partition(" ")
        if not hmac.compare_digest(seal.encode(), self._seal(address).encode()):
            logger.warning(
                "Blocks of a prompt at %.100s are of another model, form or secret than this replica's: it computes "
                "the prompt.",
                address,
            )
            return ()
        return self._peers.find(request.request_id, address, slots, awaited, _FIND_SECONDS)

    def leave(self, request_id: int) -> Found:
        """A request needs nothing more; the slots that are there no more by that."""
        return self._peers.leave(request_id)


def open_handover(config: EngineConfig, namespace: bytes, key_of: KeyFunction) -> Handover:
    """A replica's part. Raises ConfigurationError where it cannot offer anything at its place."""
    asked = config.cache.handover
    if asked is None:
        return Handover()
    if asked.role == "decode":
        peers = SlotPeers(_connect(config, asked))
        backing = Backing("peer", "--role decode", peers, is_read_only=True)
        return Handover(backing, finds=Finds(peers, namespace, key_of))
    offers = Offers(Cells(_cell_bytes(config), asked.offer_bytes))
    transfers = _transfers(asked, offers.cells)
    reach = (lambda: None) if transfers is None else (lambda: transfers.reach)
    address = OfferServer(offers, asked.host, asked.port, reach).address
    backing = Backing("peer", "--role prefill", offers, keeper=offers, keeps=asked.offer_bytes)
    return Handover(backing, f"{address} {_seal(namespace, key_of, address)}")


def _connect(config: EngineConfig, asked: HandoverConfig) -> Callable[[str], Partner]:
    """What makes a partner of an address. Raises ConfigurationError."""
    if asked.transport == "tcp":
        return NearPartner
    size = _cell_bytes(config)
    # Twice as many cells as reads at a time: a partner that hangs may hold half of them.
    transfers = _transfers(asked, Cells(size, size * 2 * SlotPeers.parallel))
    assert transfers is not None
    return partial(TransferPartner, transfers=transfers)


def _cell_bytes(config: EngineConfig) -> int:
    """Room for the largest slot as it is sealed."""
    # It needs what encrypts, which is an extra.
    from penstock.runtime.sealing import Sealing

    return Sealing.beside + max(group.width for group in config.slots.groups) * config.slots.block_bytes


def _transfers(asked: HandoverConfig, cells: Cells) -> Transfers | None:
    """What moves slots from cells to others, or from others to cells; None over TCP. Raises ConfigurationError."""
    if asked.transport == "tcp":
        return None
    option = f"--kv-transport {asked.transport}"
    try:
        with needing_extra(option, f"kv-{asked.transport}"):
            return Transfers(asked.transport, cells, asked.host, serves=asked.role == "prefill")
    except TransferFailed as error:
        raise ConfigurationError(f"{option} cannot be used: {error}; leave it out, and blocks go over TCP.") from error


def _seal(namespace: bytes, key_of: KeyFunction, address: str) -> str:
    return key_of(namespace, _OF_PLACE + address.encode()).hex()
