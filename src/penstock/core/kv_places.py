"""Where a replica tells what changes in its prefix cache."""

from typing import Annotated

import msgspec

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class KVPlaces(msgspec.Struct, frozen=True):
    """Ports of the replica's host.

    Attributes:
        events: of a ZeroMQ PUB socket, with what changes.
        replay: of a ROUTER socket, which tells again what was told.
        block_size: tokens of a block.
        told: how many batches there were so far, so that a reader sees that it has missed the last.
        tenant: whose requests those are that who asks for the state may send; it sets their prompts apart.
    """

    events: Port
    replay: Port
    block_size: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    told: Annotated[int, msgspec.Meta(ge=0)] = 0
    tenant: str = ""
