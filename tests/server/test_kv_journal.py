"""Whatever a subscriber has missed, what it is told again leads it to what the cache has."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.chain import token_bytes
from penstock.core.kv_events import Cleared, KVEvent, Removed, Stored
from penstock.core.kv_wire import decode_batch
from penstock.routing.feed import Feed
from penstock.routing.holdings import Holdings
from penstock.routing.stream import Batch, EventStream
from penstock.server.kv_journal import KVJournal


def name(tokens: tuple[int, ...]) -> bytes:
    return bytes(tokens)


@given(seed=st.integers(0, 2**31), kept=st.sampled_from((1, 3, 100)))
def test_whatever_was_missed(seed: int, kept: int) -> None:
    draw, journal = random.Random(seed), KVJournal(1, kept)
    has: set[tuple[int, ...]] = set()
    holdings = Holdings(1000)
    stream = EventStream(Feed(holdings, 0))
    for step in range(40):
        events: list[KVEvent] = []
        if draw.random() < 0.03:
            has.clear()
            events.append(Cleared())
        for _ in range(draw.randint(0, 3)):
            prompt = tuple(draw.randint(0, 1) for _ in range(draw.randint(1, 4)))
            for length in range(1, len(prompt) + 1):
                if prompt[:length] not in has:
                    has.add(prompt[:length])
                    parent = name(prompt[: length - 1]) if length > 1 else None
                    events.append(Stored(name(prompt[:length]), parent, token_bytes(prompt[length - 1 : length])))
        leaves = [each for each in has if not any(other[: len(each)] == each and other != each for other in has)]
        for each in draw.sample(sorted(leaves), min(len(leaves), draw.randint(0, 2))):
            has.remove(each)
            events.append(Removed(name(each)))
        number, payload = journal.add(float(step), events)
        assert len(journal) == len(has)
        if draw.random() < 0.4:
            continue
        at, decoded = decode_batch(payload)
        if (missed := stream.take(Batch(number, at, decoded))) is not None:
            list(stream.take_again([Batch(each, *decode_batch(told)) for each, told in journal.since(missed)]))
        assert len(holdings) == len(has) and not stream.lost


def test_what_has_not_happened_yet_is_not_told() -> None:
    journal = KVJournal(16)
    assert journal.since(0) == []
    number, payload = journal.add(1.0, [])
    assert journal.since(0) == [(number, payload)] and journal.since(1) == []


@pytest.mark.parametrize("order", [(b"a", b"b"), (b"b", b"a")])
def test_all_that_is_there_is_told_with_parents_first(order: tuple[bytes, ...]) -> None:
    journal = KVJournal(1, kept=1)
    blocks = {b"a": Stored(b"a", None, token_bytes([1])), b"b": Stored(b"b", b"a", token_bytes([2]))}
    for key in order:
        journal.add(0.0, [blocks[key]])
    [(number, payload)] = journal.since(0)
    assert number == 1 and decode_batch(payload)[1] == [Cleared(), blocks[b"a"], blocks[b"b"]]
    # What lacks its beginning cannot be hit.
    journal.add(0.0, [Removed(b"a")])
    assert decode_batch(journal.since(0)[0][1])[1] == [Cleared()]
