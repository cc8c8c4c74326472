"""Streams that another server can go on with: what is told of them on the way, and how that server is asked.

A client that sends the header TRACK gets comments between the events of a stream. The first is an `Opening`; each
further one has the tokens behind all events before it. What comes behind the last token has no such comment.

Another server with the same model goes on if it gets the same body, and behind it a `Begun` as JSON; the header RESUME
says how many bytes that has. It writes only what comes next.
"""

import msgspec

TRACK, RESUME = b"x-penstock-track", b"x-penstock-resume"
# In which a gateway says for how many seconds a request has waited there, or at other servers, of those that it has.
WAITED = b"x-penstock-waited"
# What each comment begins with (WHATWG HTML, section 9.2.6: a line that begins with a colon is ignored).
MARK = b": penstock "


class Opening(msgspec.Struct, frozen=True):
    """What a stream's first comment says.

    Attributes:
        id, created: of the response.
        seed: of the random numbers.
    """

    id: str
    created: int
    seed: int


class Begun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The beginning of a stream.

    Attributes:
        id, created, seed: as in its opening.
        tokens: that all its events hold.
        events: how many those are.
    """

    id: str
    created: int
    seed: int
    tokens: tuple[int, ...] = ()
    events: int = 0
