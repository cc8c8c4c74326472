"""What a client has got of a stream, so that another replica can go on with it (`core/resumption.py`)."""

import re

import msgspec

from penstock.core.handover import Offer, offer_in_comment
from penstock.core.resumption import MARK, Begun, Opening
from penstock.core.usage import Used, used_in_comment
from penstock.gateway.errors import ReplicaBroken, broken

# A comment, which begins where an event could; text in events has no bare line break.
_COMMENT = re.compile(rb"(?:^|(?<=\n))" + re.escape(MARK) + rb"([^\n]*)\n\n")
# Bytes of events behind the last comment; only an answer's last ones are.
_MOST_HELD = 4 * 1024 * 1024
_decode_opening = msgspec.json.Decoder(Opening).decode
_decode_tokens = msgspec.json.Decoder(tuple[int, ...]).decode


class WholeEvents:
    """Lets a stream on event by event, so that an error can follow where it breaks off.

    Args:
        counted: whether it has comments that say what it has used, which are taken out.

    Attributes:
        used: what they say so far.
    """

    def __init__(self, *, counted: bool = False) -> None:
        self._held = b""
        self._counted = counted
        self.used: Used | None = None

    def take(self, piece: bytes) -> bytes:
        """More of the stream; what can be passed on of it."""
        content = self._held + piece
        # An empty line ends an event; line breaks may have two characters.
        ends = (content.rfind(mark) + len(mark) for mark in (b"\n\n", b"\n\r\n") if mark in content)
        end = max(ends, default=len(content) if len(content) > _MOST_HELD else 0)
        self._held = content[end:]
        whole = content[:end]
        if self._counted:
            for found in _COMMENT.finditer(whole):
                self.used = used_in_comment(found[1]) or self.used
            whole = _COMMENT.sub(b"", whole)
        return whole

    def rest(self) -> bytes:
        """What is left when the stream has come to its end."""
        held, self._held = self._held, b""
        return held


class Track:
    """Takes the comments out of a stream. Events go on once it is known which tokens they hold, or that all have come.

    Args:
        begun: what the client had got from another replica.

    Attributes:
        count: tokens that were told.
        used: what the answer is said to have used; at its beginning, and again at its end.
        offer: where what was computed so far is offered to the replica that goes on; None: the stream goes on itself.
    """

    def __init__(self, begun: Begun | None = None) -> None:
        self._begun = begun
        self._held = b""
        self._opening: bytes | None = None
        # As they came: they are read only where another replica has to go on.
        self._tokens: list[bytes] = []
        self.count = 0
        self.used: Used | None = None
        self.offer: Offer | None = None
        self._events = 0 if begun is None else begun.events

    @property
    def has_more(self) -> bool:
        """Whether the client has got anything of this stream."""
        return self._opening is not None or bool(self._tokens)

    def take(self, piece: bytes) -> bytes:
        """More of the stream; what can be passed on of it. Raises ReplicaBroken where nothing is told for too long."""
        content, known, passed = self._held + piece, 0, []
        for found in _COMMENT.finditer(content):
            passed.append(content[known : found.start()])
            known = found.end()
            if (used := used_in_comment(found[1])) is not None:
                self.used = used
            elif (offer := offer_in_comment(found[1])) is not None:
                self.offer = offer
            elif self._opening is None and self._begun is None:
                self._opening = found[1]
            elif found[1] and not found[1].startswith(b"{"):
                self._tokens.append(found[1])
                self.count += found[1].count(b",") + 1
        self._held = content[known:]
        if len(self._held) > _MOST_HELD:
            raise ReplicaBroken(f"it sent {_MOST_HELD} bytes of events without saying which tokens they hold")
        told = b"".join(passed)
        self._events += told.count(b"\n\n")
        return told

    def rest(self) -> bytes:
        """What is left when the stream has come to its end."""
        held, self._held = self._held, b""
        return held

    def begun(self) -> Begun | None:
        """What the client has got; None where that is nothing. Raises msgspec.DecodeError for what is no comment."""
        tokens = _decode_tokens(b"[" + b",".join(self._tokens) + b"]")
        if self._begun is not None:
            return msgspec.structs.replace(self._begun, tokens=self._begun.tokens + tokens, events=self._events)
        if self._opening is None:
            return None
        opening = _decode_opening(self._opening)
        return Begun(opening.id, opening.created, opening.seed, tokens, self._events)


def begun_in(track: Track, name: str, why: str) -> Begun | None:
    """What a client has got of the stream of a replica with this name, which it does not go on with, and `why`.

    Raises ReplicaBroken where what it told of that cannot be read.
    """
    try:
        return track.begun()
    except msgspec.DecodeError:
        raise broken(name, f"{why}, and what it told of the tokens of its events cannot be read") from None
