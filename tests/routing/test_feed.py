"""A router that reads a cache's events knows what the cache has."""

import random

import msgspec
import pytest

from penstock.cache.chain import token_bytes
from penstock.core.config import CacheConfig, SchedulerConfig
from penstock.core.kv_events import Removed, Stored
from penstock.core.request import Standing
from penstock.routing.feed import Feed
from penstock.routing.holdings import Holdings
from penstock.routing.keys import keys_of, token_root
from penstock.scheduler.build import build_scheduler
from penstock.simulation.loop import own_tokens
from support.made_up_model import kv_spec
from support.simulation import make_request

ROOT = token_root()


@pytest.mark.parametrize("seed", range(3))
def test_hits_are_those_of_the_cache(seed: int) -> None:
    """Also where blocks are evicted, prompts share beginnings, and salts set them apart."""
    draw, holdings = random.Random(seed), Holdings(10_000)
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=256, max_model_len=512)
    scheduler = build_scheduler(config, CacheConfig(kv_spec(16), 60, events=True))
    feed = Feed(holdings, 1)
    found = 0
    for number in range(60):
        start = draw.choice((0, 1000, 1000 * number))
        prompt = list(range(start, start + draw.randint(1, 200)))
        salt = draw.choice(("", "", "mine"))
        blocks = scheduler.cache.open(-1, salt)
        hit = scheduler.cache.longest_hit(blocks, prompt) * 16
        keys = keys_of(prompt, 16, token_root("", salt.encode())).keys
        assert holdings.hits(keys).get(1, 0) * 16 == hit
        found += hit > 0
        request = make_request(number, prompt, draw.randint(1, 40))
        scheduler.add(msgspec.structs.replace(request, standing=Standing(cache_salt=salt)))
        while scheduler.has_work:
            plan = scheduler.plan(0.0)
            assert plan is not None
            scheduler.commit(plan, own_tokens(plan, 0.01))
            feed.take(scheduler.cache.take_events())
    assert found > 5 and feed.orphans == 0


def test_a_lost_event_shows() -> None:
    holdings = Holdings(100)
    feed = Feed(holdings, 0)
    tokens = list(range(48))
    first, second, third = (token_bytes(tokens[start : start + 16]) for start in (0, 16, 32))
    feed.take([Stored(b"a", None, first), Stored(b"c", b"b", third)])
    assert feed.orphans == 1 and holdings.hits(keys_of(tokens, 16, ROOT).keys) == {0: 1}
    feed.restart()
    assert feed.orphans == 0 and not holdings.hits(keys_of(tokens, 16, ROOT).keys)
    feed.take([Stored(b"a", None, first), Stored(b"b", b"a", second), Stored(b"c", b"b", third), Removed(b"b")])
    assert holdings.hits(keys_of(tokens, 16, ROOT).keys) == {0: 1}
    # What is behind it is of use again once it is back.
    feed.take([Stored(b"b", b"a", second), Removed(b"unheard of")])
    assert holdings.hits(keys_of(tokens, 16, ROOT).keys) == {0: 3}


def test_what_was_forgotten_and_is_told_again_is_found() -> None:
    holdings = Holdings(2)
    feed, other = Feed(holdings, 0), Feed(holdings, 1)
    tokens = list(range(16))
    stored = Stored(b"a", None, token_bytes(tokens))
    feed.take([stored])
    assert not holdings.is_partial(0)
    other.take([Stored(bytes([n]), None, token_bytes([n] * 16)) for n in range(20, 22)])
    keys = keys_of(tokens, 16, ROOT).keys
    assert holdings.is_partial(0) and not holdings.is_partial(1) and holdings.hits(keys) == {}
    feed.take([stored])
    assert holdings.hits(keys) == {0: 1}
    feed.restart()
    assert not holdings.is_partial(0)


def test_a_replica_cannot_fill_the_memory() -> None:
    holdings = Holdings(3)
    feed = Feed(holdings, 0)
    feed.take([Stored(bytes([n]), None, token_bytes([n] * 16)) for n in range(50)])
    assert (holdings.told, len(holdings), feed.is_partial) == (6, 3, True)
    feed.take([Removed(bytes([n])) for n in range(50)])
    assert (holdings.told, len(holdings)) == (0, 0)
    feed.restart()
    assert not feed.is_partial


def test_one_that_is_gone_has_nothing_though_something_was_on_its_way() -> None:
    holdings = Holdings(100)
    feed = Feed(holdings, 0)
    keys = keys_of(list(range(32)), 16, ROOT).keys
    feed.expect(keys)
    feed.take([Stored(b"a", None, token_bytes([7] * 16))])
    feed.forget()
    assert not len(holdings) and not holdings.told
    feed.settle(keys)
    assert not len(holdings)
