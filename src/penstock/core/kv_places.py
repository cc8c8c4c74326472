"""Where a replica tells what changes in its prefix cache."""

import msgspec


class KVPlaces(msgspec.Struct, frozen=True):
    """Ports of the replica's host.

    Attributes:
        events: of a ZeroMQ PUB socket, with what changes.
        replay: of a ROUTER socket, which tells again what was told.
        block_size: tokens of a block.
        told: how many batches there were so far, so that a reader sees that it has missed the last.
        tenant: whose requests those are that who asks for the state may send; it sets their prompts apart.
    """

    events: int
    replay: int
    block_size: int
    told: int = 0
    tenant: str = ""
