"""What stands in a file: a byte order mark before its text, or something else than what its name says; and its name."""

import re

_MARK = b"\xef\xbb\xbf"
_OTHER_MARKS = (b"\xff\xfe", b"\xfe\xff")
# Bytes from the beginning of a file that `something_else` needs.
HEAD = 512
# What Python makes of bytes in a name that are not UTF-8.
_NO_CHARACTERS = re.compile("[\ud800-\udfff]")


def shown(text: str) -> str:
    """Text with names of files in it, as it can be printed and sent: bytes that are not UTF-8 become \\xNN.

    Other halves of surrogate pairs, which JSON can spell, become \\udNNN.
    """
    return _NO_CHARACTERS.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code & 0xFF:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def without_mark(raw: bytes) -> bytes:
    """UTF-8 without the byte order mark that editors on Windows put in front."""
    return raw.removeprefix(_MARK)


def decoded(raw: bytes) -> str:
    """The text of a file in UTF-8, whether it has a byte order mark or none.

    Raises ValueError with what is wrong.
    """
    if raw.startswith(_OTHER_MARKS):
        raise ValueError("it is UTF-16; save it as UTF-8")
    return without_mark(raw).decode("utf-8")


def something_else(head: bytes) -> str | None:
    """What a file is instead of what its name says, by its beginning, and what to do; None where that does not tell."""
    if not head:
        return "is empty; download it again"
    if head.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS, not the file itself; fetch that with `git lfs pull`, or `hf download`"
    if without_mark(head).lstrip()[:14].lower().startswith((b"<!doctype html", b"<html")):
        return "is a web page, as servers send instead of a file that needs a login; download it again"
    return None
