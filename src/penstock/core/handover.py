"""Prompts that one replica computes, and whose outputs another one goes on with: what the two and a gateway tell.

A gateway asks a replica that computes prompts with the header HANDOVER. That computes the prompt and the first token,
and offers the prompt's blocks at a place of its own (DistServe, Zhong et al., OSDI 2024, section 4; Splitwise, Patel
et al., ISCA 2024, section 4). A stream that another server can go on with (`core/resumption.py`) has the first token's
events then, and ends with a comment that has an `Offer`. Any other answer has no body, and the offer in the header.

The gateway sends the request to a replica that decodes, with the offer in the header OFFER, and behind the body what
the stream has begun with. That replica pulls the blocks. Whatever it does not get, it computes.
"""

from typing import Literal

import msgspec

Role = Literal["both", "prefill", "decode"]
HandoverRole = Literal["prefill", "decode"]
# What blocks are pulled by: a connection, or on one machine its memory; else an engine that reads memory of others.
Transport = Literal["tcp", "nixl", "mooncake"]
HANDOVER, OFFER = b"x-penstock-handover", b"x-penstock-offer"
_MARK = b"offer "
# Of the environment, with the secret of keys of prefixes that replicas have in common.
PREFIX_SECRET = "PENSTOCK_PREFIX_SECRET"
# Seconds for which blocks are offered, and so again whenever who waits for them says that it does.
LEASE_SECONDS = 30.0


class Offer(msgspec.Struct, frozen=True):
    """Where the blocks of a prompt are.

    Attributes:
        place: of the transport, as `sealed_place` makes it; empty where nothing is offered.
        cached: tokens of the prompt that the replica had in its cache, which the client is told.
    """

    place: str = ""
    cached: int = 0

    @property
    def value(self) -> bytes:
        """As a header has it."""
        return msgspec.json.encode(self)

    @property
    def comment(self) -> bytes:
        """What a stream's comment has behind its mark."""
        return _MARK + self.value


_decode = msgspec.json.Decoder(Offer).decode


def offer_in(value: bytes) -> Offer | None:
    """The offer of a header; None where it cannot be read."""
    try:
        return _decode(value)
    except msgspec.DecodeError:
        return None


def offer_in_comment(content: bytes) -> Offer | None:
    """That of a comment; None where it says something else."""
    return offer_in(content.removeprefix(_MARK)) if content.startswith(_MARK) else None
