"""A byte order mark in front of a text is no part of it; a file that is something else is told by its beginning."""

import codecs

import pytest

from penstock.core.text_files import HEAD, decoded, something_else, without_mark

TEXT = '{"a": "ü"}\n'


def test_text_with_and_without_a_mark() -> None:
    raw = TEXT.encode()
    assert decoded(raw) == decoded(codecs.BOM_UTF8 + raw) == TEXT
    assert without_mark(codecs.BOM_UTF8 + raw) == without_mark(raw) == raw
    assert decoded(b"") == decoded(codecs.BOM_UTF8) == ""


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_another_encoding_is_named(encoding: str) -> None:
    raw = TEXT.encode(encoding)
    marked = raw if raw.startswith(codecs.BOM_UTF16_LE) else codecs.BOM_UTF16_BE + raw
    with pytest.raises(ValueError, match="UTF-16; save it as UTF-8"):
        decoded(marked)


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "Git LFS"),
        (b"\n <!DOCTYPE HTML><html>", "web page"),
        (codecs.BOM_UTF8 + b"<html lang=en>", "web page"),
        (b"{}", None),
        (b"GGUF\3\0\0\0", None),
        (bytes(HEAD), None),
    ],
)
def test_what_a_beginning_tells(head: bytes, says: str | None) -> None:
    found = something_else(head)
    assert found is None if says is None else says in (found or "")
