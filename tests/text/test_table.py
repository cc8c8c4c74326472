"""Decoding by table equals the tokenizer's own decoding, for every kind of tokenizer."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from penstock.core.errors import TokenizerError
from penstock.text.table import TokenTable, build_table
from support.tokenizers_made import CORPUS, KINDS, make_raw

RAW = {kind: make_raw(kind) for kind in KINDS}
TABLES = {kind: build_table(raw) for kind, raw in RAW.items()}


def byte_tokens_are_valid(kind: str, ids: list[int], skip_special: bool) -> bool:
    """Whether every run of byte tokens is UTF-8: elsewhere the tokenizer replaces the valid bytes beside it too."""
    table, run = TABLES[kind], b""
    for token in ids:
        if token >= len(table) or (skip_special and table.special[token]):
            continue
        text = RAW[kind].id_to_token(token)
        if len(text) == 6 and text.startswith("<0x"):
            run += bytes([int(text[3:5], 16)])
        elif not is_utf8(run):
            return False
        else:
            run = b""
    return is_utf8(run)


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150)
@given(data=st.data(), skip_special=st.booleans())
def test_decoding_equals_the_tokenizer(kind: str, data: st.DataObject, skip_special: bool) -> None:
    raw, table = RAW[kind], TABLES[kind]
    # Ids beyond the vocabulary yield nothing, in both; byte tokens are rare among the others.
    known = st.one_of(st.integers(0, 120), st.integers(0, len(table) + 3))
    ids = data.draw(st.lists(known, max_size=12))
    if kind in ("llama2", "gemma"):
        assume(byte_tokens_are_valid(kind, ids, skip_special))
    assert table.decode(ids, skip_special) == raw.decode(ids, skip_special_tokens=skip_special)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [*CORPUS, "", " ", "   a", "<|im_start|>user\nhi<|im_end|>", "two words", "a<think>b"])
@pytest.mark.parametrize("skip_special", [True, False])
def test_encoded_text_decodes_as_the_tokenizer_does(kind: str, text: str, skip_special: bool) -> None:
    ids = RAW[kind].encode(text).ids
    assert TABLES[kind].decode(ids, skip_special) == RAW[kind].decode(ids, skip_special_tokens=skip_special)


def test_a_continuation_of_sentencepiece_loses_its_leading_space() -> None:
    raw, table = RAW["llama2"], TABLES["llama2"]
    ids = raw.encode("the fox").ids
    assert table.decode(ids) == "the fox"
    assert table.piece(ids[0]).startswith(b" ")


def test_ids_without_a_token_yield_nothing() -> None:
    table = TABLES["byte_level"]
    assert table.piece(len(table)) == b""
    assert table.piece(-1) == b""
    assert table.decode([len(table) + 5, 2**31]) == ""


def test_special_tokens_are_known() -> None:
    table = TABLES["byte_level"]
    assert [index for index, special in enumerate(table.special) if special] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (decoders.CTC(), "CTC"),
        (decoders.Sequence([decoders.Fuse(), decoders.Replace("a", "b")]), "Replace"),
        (decoders.Sequence([decoders.ByteLevel(), decoders.ByteFallback()]), "ByteFallback"),
        (decoders.Strip(" ", 0, 1), "Strip"),
    ],
)
def test_other_decoders_are_refused_by_name(decoder: object, named: str) -> None:
    raw = make_raw("byte_level")
    raw.decoder = decoder
    with pytest.raises(TokenizerError, match=named):
        build_table(raw)


def test_strip_of_each_token_and_of_several_spaces() -> None:
    raw = make_raw("gemma")
    spaced = raw.encode("   indented   text").ids
    for steps in (
        [decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)],
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)],
    ):
        raw.decoder = decoders.Sequence(steps)
        assert build_table(raw).decode(spaced) == raw.decode(spaced)


def test_table_can_be_made_by_hand() -> None:
    table = TokenTable([b"a", b" b"], [b"a", b"b"], 0, [False, False])
    assert table.decode([1, 0, 1]) == "ba b"
