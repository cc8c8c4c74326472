"""What a server keeps at most."""

import msgspec

DAY = 24 * 3600


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one server's storage.

    Attributes:
        file_bytes, lines: of an input file; what OpenAI takes.
        line_bytes: of one line, as long as the body of a request may be.
        total_bytes: of all files, and of results that are no file yet; fifty of the largest inputs.
        files: how many; listing them all stays cheap.
        seconds_kept: the age at which files go, and batches that have ended; OpenAI's for batches.
        unfinished_batches: that wait or run; each may have `lines` lines to go.
        batches: that are remembered; beyond it those that ended first are forgotten.
    """

    file_bytes: int = 200 * 1000**2
    lines: int = 50_000
    line_bytes: int = 32 * 1024**2
    total_bytes: int = 10 * 1000**3
    files: int = 10_000
    seconds_kept: int = 30 * DAY
    unfinished_batches: int = 100
    batches: int = 10_000
