"""What a request asks of a router, and what it answers."""

import msgspec


class Ask(msgspec.Struct, frozen=True, gc=False):
    """A request that is to be sent to one of several replicas.

    Attributes:
        number: of the request at this router, from 0 on; draws and turns are functions of it.
        tokens: of its prompt, as exactly as they are known.
        session: what further requests of the same conversation or user have in common; None where nothing says it.
        output: tokens that are expected of its answer; 0 where nothing is.
    """

    number: int
    tokens: int
    session: str | None = None
    output: int = 0


class Choice(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes.

    Attributes:
        replica: its place among the fleet's.
        reason: why there, and so why not elsewhere, in words.
        hit: tokens of the prompt that the replica is thought to have in its cache.
    """

    replica: int
    reason: str
    hit: int = 0
