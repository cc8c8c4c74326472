"""What an answer has used, as a server tells a gateway that has sent the header TRACK (`core/resumption.py`).

An answer that is no stream has the header USED. A stream has comments behind its first events and its last ones.
"""

import msgspec

from penstock.core.resumption import MARK

USED = b"x-penstock-used"
_MARK = b"used "


class Used(msgspec.Struct, frozen=True):
    """Tokens.

    Attributes:
        prompt: of all prompts.
        cached: those of them that were in the cache.
        output: of all answers.
    """

    prompt: int
    cached: int
    output: int

    @property
    def header(self) -> tuple[bytes, bytes]:
        """As an answer's header has it."""
        return USED, b"%d,%d,%d" % (self.prompt, self.cached, self.output)

    @property
    def comment(self) -> bytes:
        """As a stream has it."""
        return MARK + _MARK + self.header[1] + b"\n\n"


def used_in_header(value: bytes) -> Used | None:
    """None where it cannot be read."""
    parts = value.split(b",")
    return Used(*map(int, parts)) if len(parts) == 3 and all(map(bytes.isdigit, parts)) else None


def used_in_comment(content: bytes) -> Used | None:
    """What a comment says behind MARK; None where it says something else."""
    return used_in_header(content.removeprefix(_MARK)) if content.startswith(_MARK) else None
