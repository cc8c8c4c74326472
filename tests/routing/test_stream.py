"""However events arrive, the index ends with what the replica has."""

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.kv_events import Cleared, KVEvent, Removed, Stored
from penstock.routing.feed import Feed
from penstock.routing.holdings import Holdings
from penstock.routing.keys import keys_of, token_root
from penstock.routing.stream import Batch, EventStream, Exactness

ROOT = token_root()


class Told:
    """A cache of prompts of one block each, which tells what it does and keeps the last of it."""

    def __init__(self, draw: random.Random, keeps: int) -> None:
        self.draw, self.keeps = draw, keeps
        self.clock, self.begun = 0.0, 0
        self.begin()

    def begin(self) -> None:
        self.begun += 1
        self.has: set[int] = set()
        self.sent: list[Batch] = []

    def step(self) -> Batch:
        self.clock += 1.0
        events: list[KVEvent] = []
        for token in self.draw.sample(range(30), self.draw.randint(0, 5)):
            if token in self.has:
                self.has.remove(token)
                events.append(Removed(bytes([token])))
            else:
                self.has.add(token)
                events.append(Stored(bytes([token]), None, token.to_bytes(4, "little")))
        batch = Batch(len(self.sent), self.clock, events, str(self.begun))
        self.sent.append(batch)
        return batch

    def again(self, number: int) -> list[Batch]:
        return [batch for batch in self.sent[-self.keeps :] if batch.number >= number]


def known(holdings: Holdings) -> set[int]:
    return {token for token in range(30) if holdings.hits(keys_of([token], 1, ROOT).keys)}


@given(seed=st.integers(0, 2**31), keeps=st.sampled_from((1, 5, 10_000)), bad=st.sampled_from((0.0, 0.1, 0.5)))
def test_what_is_dropped_reordered_or_sent_twice(seed: int, keeps: int, bad: float) -> None:
    draw = random.Random(seed)
    told, holdings = Told(draw, keeps), Holdings(1000)
    stream = EventStream(Feed(holdings, 0))
    late: list[Batch] = []
    for _ in range(80):
        if draw.random() < 0.02:
            told.begin()
        batch = told.step()
        if draw.random() < bad:
            if draw.random() < 0.5:
                late.append(batch)
            continue
        arriving = [batch, *([batch] if draw.random() < bad else []), *late]
        late = []
        for each in arriving:
            if (number := stream.take(each)) is not None:
                list(stream.take_again(told.again(number)))
        # Nothing is believed to be there that is not, once all that was missed is made up for or given up.
        assert known(holdings) <= told.has
        if keeps == 10_000:
            assert known(holdings) == told.has and stream.exactness == Exactness.EXACT and not stream.lost


def test_what_cannot_be_had_again_is_counted() -> None:
    holdings = Holdings(100)
    stream = EventStream(Feed(holdings, 0))
    stored = [Stored(bytes([token]), None, token.to_bytes(4, "little")) for token in range(6)]
    assert stream.take(Batch(0, 0.0, stored[:1])) is None
    assert stream.take(Batch(3, 3.0, stored[3:4])) == 1
    assert stream.exactness == Exactness.DEGRADED
    list(stream.take_again([Batch(2, 2.0, stored[2:3]), Batch(3, 3.0, stored[3:4])]))
    assert (stream.lost, stream.restarts, stream.exactness) == (1, 0, Exactness.DEGRADED)
    assert known(holdings) == {2, 3} and stream.is_broken
    # A batch that tells all makes up for it.
    assert stream.take(Batch(4, 4.0, [Cleared(), *stored[1:4]])) is None
    assert (known(holdings), stream.exactness) == ({1, 2, 3}, Exactness.EXACT)


def test_a_snapshot_needs_nothing_of_before() -> None:
    holdings = Holdings(100)
    stream = EventStream(Feed(holdings, 0))
    stored = [Stored(bytes([token]), None, token.to_bytes(4, "little")) for token in range(6)]
    stream.take(Batch(0, 0.0, stored[:2]))
    assert stream.take(Batch(9, 9.0, stored[5:])) == 1
    list(stream.take_again([Batch(8, 8.0, [Cleared(), *stored[2:4]])]))
    assert known(holdings) == {2, 3, 5} and stream.exactness == Exactness.EXACT and not stream.lost


def test_a_replica_that_began_anew_has_nothing_of_before() -> None:
    holdings = Holdings(100)
    stream = EventStream(Feed(holdings, 0))
    for number in range(5):
        stream.take(Batch(number, number, [Stored(bytes([number]), None, number.to_bytes(4, "little"))]))
    assert stream.take(Batch(0, 9.0, [Stored(b"x", None, (7).to_bytes(4, "little"))])) is None
    assert known(holdings) == {7} and stream.restarts == 1
    # What was on its way from before is of no use.
    assert stream.take(Batch(4, 4.0, [Removed(b"x")])) == 1


def test_what_was_told_again_may_come_late() -> None:
    holdings = Holdings(100)
    stream = EventStream(Feed(holdings, 0))
    batches = [
        Batch(number, float(number), [Stored(bytes([number]), None, number.to_bytes(4, "little"))])
        for number in range(6)
    ]
    assert stream.take(batches[0]) is None and stream.take(batches[2]) == 1
    list(stream.take_again(batches[1:]))
    assert [stream.take(batch) for batch in batches[3:]] == [None] * 3
    assert (stream.restarts, stream.exactness, known(holdings)) == (0, Exactness.EXACT, set(range(6)))


def test_what_is_lost_for_good_is_not_taken_to_be_known() -> None:
    holdings = Holdings(100)
    stream = EventStream(Feed(holdings, 0))
    for number in range(3):
        stream.take(Batch(number, float(number), [Stored(bytes([number]), None, number.to_bytes(4, "little"))]))
    assert stream.exactness == Exactness.EXACT
    # The replica has told of more, and does not tell it again.
    stream.give_up()
    assert stream.exactness == Exactness.DEGRADED and stream.is_broken and not known(holdings)
