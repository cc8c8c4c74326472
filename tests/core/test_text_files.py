"""A byte order mark in front of a text is no part of it; a file that is something else is told by its beginning."""

import codecs

import pytest

from penstock.core.config import Reason
from penstock.core.errors import ModelFileError
from penstock.core.text_files import HEAD, decoded, shown, something_else, without_mark

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


def test_a_name_that_is_not_utf_8_can_be_printed_and_sent() -> None:
    name = b"/caf\xe9/m\xc3\xb6del".decode("utf-8", "surrogateescape")
    assert shown(name) == r"/caf\xe9/m\u00f6del".replace(r"\u00f6", "ö")
    assert shown("ö") == "ö"
    assert shown("a\ud800") == r"a\ud800"
    error = ModelFileError(f"{name} is missing.")
    assert str(error) == error.message == r"/caf\xe9/mödel is missing."
    assert Reason("model", name, name).value == Reason("model", name, name).why == r"/caf\xe9/mödel"
