"""Which replica each policy takes, and why."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.routing.ask import Ask, Choice
from penstock.routing.loads import Loads
from penstock.routing.policies import (
    POLICIES,
    Estimated,
    Fleet,
    LeastLoaded,
    LongestPrefix,
    Policy,
    PowerOfTwo,
    RoundRobin,
    SessionAffinity,
    policy_of,
    two_of,
)
from penstock.routing.speed import Speed

SPEED = Speed(prefill=10_000.0, decode=0.01, row=0.0001, token=1e-8)


def fleet(requests: Sequence[int], reading: Sequence[int] | None = None, prompt: int = 1000) -> Fleet:
    """Replicas with as many requests, of which as many wait for their first token."""
    loads = Loads(len(requests))
    for place, count in enumerate(requests):
        for number in range(count):
            sent = loads.sent(place, prompt)
            if number >= (count if reading is None else reading[place]):
                loads.answering(sent)
    return Fleet(
        [f"http://replica-{place}:8000" for place in range(len(requests))],
        loads,
        [SPEED] * len(requests),
        [0.0] * len(requests),
    )


def choose(
    policy: Policy,
    known: Fleet,
    number: int = 0,
    tokens: int = 1000,
    *,
    candidates: Sequence[int] | None = None,
    hits: Mapping[int, int] | None = None,
    session: str | None = None,
) -> Choice:
    ask = Ask(number, tokens, session, 100)
    return policy.choose(ask, candidates or range(len(known.names)), known, hits or {})


@given(
    st.sampled_from(sorted(POLICIES)),
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.data(),
    st.integers(0, 2**40),
    st.none() | st.text(max_size=5),
)
def test_one_of_the_candidates_is_taken(
    name: str, requests: list[int], data: st.DataObject, number: int, session: str | None
) -> None:
    places = st.integers(0, len(requests) - 1)
    candidates = sorted(data.draw(st.sets(places, min_size=1)))
    hits = data.draw(st.dictionaries(places, st.integers(1, 1000)))
    known = fleet(requests)
    choice = choose(policy_of(name), known, number, candidates=candidates, hits=hits, session=session)
    assert choice.replica in candidates and choice.reason and choice.hit in (0, hits.get(choice.replica))
    # It is a function.
    again = choose(policy_of(name), known, number, candidates=candidates, hits=hits, session=session)
    assert again == choice


def test_turns() -> None:
    known = fleet([5, 0, 5])
    assert [choose(RoundRobin(), known, number).replica for number in range(4)] == [0, 1, 2, 0]
    assert [choose(RoundRobin(), known, number, candidates=[0, 2]).replica for number in range(3)] == [0, 2, 0]


def test_the_least_loaded_replica_is_taken() -> None:
    def taken(requests: Sequence[int], candidates: Sequence[int] | None = None) -> list[int]:
        known = fleet(requests)
        return [choose(LeastLoaded(), known, number, candidates=candidates).replica for number in range(4)]

    assert taken([2, 1, 1]) == [1, 1, 2, 1]
    assert taken([0, 0, 0]) == [0, 1, 2, 0]
    assert taken([0, 3, 2], [1, 2]) == [2, 2, 2, 2]


def test_two_are_drawn_of_all_pairs_alike() -> None:
    drawn = Counter(two_of(number, [3, 5, 7, 9]) for number in range(12_000))
    assert len(drawn) == 12 and all(one != other for one, other in drawn)
    # Each of them 1,000 times in the mean, with a standard deviation of 30.
    assert all(880 < count < 1120 for count in drawn.values())
    assert two_of(5, [3]) == (3, 3)


def test_of_two_drawn_ones_the_less_loaded_is_taken() -> None:
    known = fleet([3, 2, 1, 0])
    taken = Counter(choose(PowerOfTwo(), known, number).replica for number in range(600))
    assert taken[0] == 0 and 0 < taken[1] < taken[2] < taken[3]


def test_sessions_stay_where_they_are_when_replicas_come_and_go() -> None:
    known = fleet([0] * 5)
    sessions = [f"conversation {number}" for number in range(500)]

    def places(candidates: Sequence[int]) -> list[int]:
        return [choose(SessionAffinity(), known, session=each, candidates=candidates).replica for each in sessions]

    with_all, without = places(range(5)), places([0, 1, 3, 4])
    assert min(Counter(with_all).values()) > 60
    assert all(one == other for one, other in zip(with_all, without, strict=True) if one != 2)
    # Those of the one that left are spread over all others.
    assert len({other for one, other in zip(with_all, without, strict=True) if one == 2}) == 4


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.text(max_size=10))
def test_no_replica_gets_more_than_its_share_of_sessions(requests: list[int], session: str) -> None:
    place = choose(SessionAffinity(bound=1.25), fleet(requests), session=session).replica
    assert requests[place] + 1 <= 1.25 * (sum(requests) + 1) / len(requests) + 1


def test_a_session_whose_replica_is_full_says_so() -> None:
    free = choose(SessionAffinity(), fleet([0, 0, 0]), session="a")
    full = [0, 0, 0]
    full[free.replica] = 10
    other = choose(SessionAffinity(), fleet(full), session="a")
    assert free.reason == "its session's replica"
    assert other.replica != free.replica and f"replica-{free.replica}:8000 has more than its share" in other.reason
    assert choose(SessionAffinity(), fleet([1, 0, 1])).reason == "the fewest requests"


def test_the_longest_prefix_is_taken_unless_loads_differ() -> None:
    hits = {0: 320, 2: 640}
    choice = choose(LongestPrefix(), fleet([1, 0, 20]), hits=hits)
    assert (choice.replica, choice.hit) == (2, 640) and choice.reason == "640 tokens of its prompt are there"
    choice = choose(LongestPrefix(), fleet([1, 0, 40]), hits=hits)
    assert (choice.replica, choice.hit) == (1, 0) and choice.reason == "the fewest requests, since loads differ"
    assert choose(LongestPrefix(), fleet([1, 0, 2])).replica == 1
    # Of several, the one with fewer requests.
    assert choose(LongestPrefix(), fleet([1, 2, 0]), hits={0: 320, 1: 320}).replica == 0


def test_an_estimate_weighs_what_is_cached_against_what_waits() -> None:
    # 1,000 tokens take 0.1 s; behind two other prompts, 0.2 s more.
    assert choose(Estimated(), fleet([2, 0], [2, 0]), hits={0: 900}).replica == 1
    assert choose(Estimated(), fleet([1, 0], [1, 0], prompt=100), hits={0: 900}).replica == 0
    # Those who are being answered would wait for it.
    assert choose(Estimated(), fleet([3, 0], [0, 0])).replica == 1
    assert choose(Estimated(), fleet([3, 0], [0, 0]), hits={0: 999}).replica == 0


def test_of_estimates_that_are_near_not_all_routers_take_the_same() -> None:
    taken = Counter(choose(Estimated(), fleet([0, 0, 0, 4], [0, 0, 0, 4]), number).replica for number in range(300))
    assert set(taken) == {0, 1, 2} and min(taken.values()) > 60


def test_a_name_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match="no routing policy 'fastest'; there are round-robin, "):
        policy_of("fastest")
