"""Requests from their choice to their end."""

from penstock.routing.holdings import Holdings
from penstock.routing.keys import keys_of, namespace
from penstock.routing.policies import Estimated, LongestPrefix, RoundRobin
from penstock.routing.router import Router
from penstock.routing.speed import Speed

NAMES = ["a", "b", "c"]
SPEEDS = [Speed(1000.0, 0.01)] * 3


def test_a_prompt_counts_without_what_is_cached() -> None:
    holdings = Holdings(100)
    router = Router(LongestPrefix(), NAMES, SPEEDS, holdings)
    prompt = list(range(64))
    keys = keys_of(prompt, 16, namespace(b""))
    holdings.stored(1, keys.keys)
    choice, sent = router.send(64, keys)
    # The last token is always computed.
    assert (choice.replica, choice.hit, sent.uncached, router.loads.uncached) == (1, 63, 1, [0, 1, 0])
    other, _ = router.send(64, keys_of(prompt, 16, namespace(b"another's")))
    assert (other.replica, other.hit) == (2, 0)
    router.over(sent, 10)
    assert router.loads.requests == [0, 0, 1]


def test_answers_are_expected_to_be_as_long_as_others_were() -> None:
    router = Router(RoundRobin(), NAMES, SPEEDS, Holdings(100))
    for output in (100, 0, 100):
        _, sent = router.send(3)
        router.over(sent, output)
    # Those that gave nothing say nothing of it.
    assert router.output == 100.0
    for _ in range(500):
        router.over(router.send(1)[1], 10)
    assert 10 < router.output < 11


def test_only_candidates_are_asked() -> None:
    router = Router(RoundRobin(), NAMES, SPEEDS, Holdings(100))
    assert {router.send(1, candidates=[0, 2])[0].replica for _ in range(5)} == {0, 2}


def test_one_with_a_handicap_is_chosen_where_others_would_take_longer_by_more() -> None:
    router = Router(Estimated(), [], [], Holdings(10))
    for name, handicap in (("own", 0.0), ("far", 0.5)):
        router.add(name, Speed(1000.0, 0.01), handicap)
    chosen = [router.send(200, candidates=[0, 1])[0].replica for _ in range(8)]
    # Each prompt takes 0.2 s where it is computed.
    assert chosen[:3] == [0, 0, 0] and 1 in chosen[3:] and chosen.count(0) > chosen.count(1)
