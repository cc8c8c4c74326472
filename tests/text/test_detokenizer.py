"""Streaming text: the same under every split, whole characters only, nothing shown that is taken back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.text.detokenizer import Detokenizer
from penstock.text.stops import StopMatcher
from penstock.text.table import TokenStream, TokenTable, build_table
from support.tokenizers_made import KINDS, make_raw

TABLES = {kind: build_table(make_raw(kind)) for kind in KINDS}
# One token for every byte: every UTF-8 sequence can be split everywhere.
BYTES = TokenTable([bytes([byte]) for byte in range(256)], [bytes([byte]) for byte in range(256)], 0, [False] * 256)


def split(ids: list[int], cuts: list[int]) -> list[list[int]]:
    places = sorted({0, len(ids), *(place % (len(ids) + 1) for place in cuts)})
    return [ids[low:high] for low, high in zip(places, places[1:], strict=False)]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(data=st.data())
def test_any_split_gives_what_decode_gives(kind: str, data: st.DataObject) -> None:
    table = TABLES[kind]
    ids = data.draw(st.lists(st.integers(0, len(table) + 2), max_size=20))
    skip_special = data.draw(st.booleans())
    detokenizer = Detokenizer(table, skip_special=skip_special)
    text = "".join(detokenizer.push(part) for part in split(ids, data.draw(st.lists(st.integers(0, 30)))))
    assert text + detokenizer.finish() == table.decode(ids, skip_special)


@given(st.text(max_size=20), st.lists(st.integers(0, 90)))
def test_never_half_a_character(text: str, cuts: list[int]) -> None:
    detokenizer = Detokenizer(BYTES)
    shown = ""
    for part in split(list(text.encode("utf-8", "replace")), cuts):
        piece = detokenizer.push(part)
        assert "\ufffd" not in piece or "\ufffd" in text
        shown += piece
    assert shown + detokenizer.finish() == text.encode("utf-8", "replace").decode()


@given(st.binary(max_size=24), st.lists(st.integers(0, 30)))
def test_bytes_that_are_not_text_become_replacement_characters(data: bytes, cuts: list[int]) -> None:
    detokenizer = Detokenizer(BYTES)
    shown = "".join(detokenizer.push(part) for part in split(list(data), cuts))
    assert shown + detokenizer.finish() == data.decode("utf-8", "replace")


def test_an_incomplete_tail_is_shown_at_the_end() -> None:
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.push(list("é".encode()[:1])) == ""
    assert detokenizer.finish() == "\ufffd"


@given(
    text=st.text("abé\n", max_size=24),
    stops=st.lists(st.text("abé\n", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 60)),
    include=st.booleans(),
    min_tokens=st.integers(0, 6),
)
def test_stop_strings_cut_the_text_where_the_engine_stops(
    text: str, stops: list[str], cuts: list[int], include: bool, min_tokens: int
) -> None:
    ids = list(text.encode())
    # What the engine does: token by token, until a stop string is complete.
    matcher, stream, end = StopMatcher(stops, min_tokens), TokenStream(BYTES, True), len(ids)
    for position, token in enumerate(ids):
        if matcher.feed(stream.next(token)) is not None:
            end = position + 1
            break
    matched = matcher.matched
    expected = bytes(ids[:end])
    if matched is not None and not include:
        expected = expected[: -len(matched.encode())]

    detokenizer = Detokenizer(BYTES, stops, include, True, min_tokens)
    parts = split(ids[:end], cuts)
    shown = ""
    for part in parts[:-1]:
        shown += detokenizer.advance(part, None)
        assert expected.decode("utf-8", "replace").startswith(shown)
    last = parts[-1] if parts else []
    shown += detokenizer.advance(last, "stop" if matched is not None else "length")
    assert shown == expected.decode("utf-8", "replace")


def test_text_that_may_become_a_stop_string_is_held_back_and_then_shown() -> None:
    detokenizer = Detokenizer(BYTES, ["STOP"])
    assert detokenizer.push(list(b"hello ST")) == "hello "
    assert detokenizer.push(list(b"AY ST")) == "STAY "
    assert detokenizer.finish() == "ST"


@pytest.mark.parametrize(("include", "expected"), [(False, "ok"), (True, "ok</s>")])
def test_the_token_that_ends_the_output_is_shown_like_stop_strings(include: bool, expected: str) -> None:
    table = TABLES["byte_level"]
    raw = make_raw("byte_level")
    ids = [*raw.encode("ok").ids, raw.token_to_id("</s>")]
    detokenizer = Detokenizer(table, include_stop=include, skip_special=False)
    assert detokenizer.advance(ids, "stop", True) == expected


def test_the_last_token_is_shown_where_length_or_a_stop_string_ended_the_output() -> None:
    assert Detokenizer(BYTES).advance(list(b"abc"), "length") == "abc"
    assert Detokenizer(BYTES, ["c"]).advance(list(b"abc"), "stop") == "ab"
    assert Detokenizer(BYTES).advance(list(b"abc"), "stop", True) == "ab"
    assert Detokenizer(BYTES).advance([], "abort") == ""


def test_special_tokens_that_are_kept_stay_in_the_text() -> None:
    raw = make_raw("byte_level")
    table = build_table(raw)
    tokens = raw.encode("<s>a<|im_end|>b", add_special_tokens=False).ids
    kept = (raw.token_to_id("<|im_end|>"),)
    assert Detokenizer(table).finish(tokens) == "ab"
    assert Detokenizer(table, kept_special=kept).finish(tokens) == "a<|im_end|>b"
    stopped = Detokenizer(table, stop=["d|>b"], kept_special=kept)
    assert stopped.finish(tokens) == "a<|im_en"
