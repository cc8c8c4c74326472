"""Replicas with roles in simulated time: which prompts are handed over, and what streams have of it."""

import random
from collections.abc import Sequence

import msgspec
import pytest

from penstock.routing.policies import LeastLoaded, policy_of
from penstock.scheduler.build import build_scheduler
from penstock.simulation.books import cache_of
from penstock.simulation.fleet import Played, play_fleet
from penstock.simulation.loop import Arrival
from penstock.simulation.peer import SimulatedPeer
from penstock.simulation.replica import Replica
from penstock.simulation.roles import Roles
from penstock.simulation.sources import Conversations, Given, Turn
from support.played import DEPLOYMENT, TIMES, config
from support.simulation import make_request

FAST, SLOW = 50e9, 1e9
LIMITS = config(max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=40_000)
CACHE = msgspec.structs.replace(cache_of(DEPLOYMENT, int(20e9)), prefix_caching=True)


def play(
    arrivals: Sequence[Arrival], roles: tuple[int, int] | None, transfer: float = FAST, further: tuple[Turn, ...] = ()
) -> Played:
    """Two replicas or more, with roles or without."""
    count = 2 if roles is None else sum(roles)
    schedulers = [build_scheduler(LIMITS, CACHE) for _ in range(count)]
    given, peers = None, {}
    if roles is not None:
        given = Roles(range(roles[0]), range(roles[0], count))
        peers = {place: SimulatedPeer(transfer, schedulers[place]) for place in given.decodes}
    replicas = [Replica(each, TIMES, place, peers.get(place)) for place, each in enumerate(schedulers)]
    source = Given(arrivals)
    if further:
        turns = Conversations(source, lambda _number: further, 0.1, len(arrivals), lambda number, size: [number] * size)
        played = play_fleet(replicas, turns, LeastLoaded(), given, peers)
    else:
        played = play_fleet(replicas, source, LeastLoaded(), given, peers)
    for each in schedulers:
        each.check()
    return played


def streams_and_prompts(seed: int = 0, prompts: int = 40, size: int = 4096, streams: int = 20) -> list[Arrival]:
    """Streams, and beside them long prompts with short answers."""
    draw = random.Random(seed)
    coming = [(0.001 * number, 100, 1500) for number in range(streams)]
    coming += [(draw.uniform(1.0, 8.0), size, 20) for _ in range(prompts)]
    return [
        Arrival(at, make_request(number, [1000 * number + 7, *range(1, length)], output))
        for number, (at, length, output) in enumerate(sorted(coming))
    ]


def p99(played: Played) -> float:
    """Of gaps between tokens."""
    total, seen = played.figures.gaps.total(), 0
    for gap, count in sorted(played.figures.gaps.items()):
        seen += count
        if seen >= 0.99 * total:
            return gap
    raise AssertionError("there are gaps")


def test_gaps_are_shorter_where_long_prompts_are_handed_over() -> None:
    """As real processes show it: p99 falls to half or less of what the same two do without roles."""
    arrivals = streams_and_prompts()
    apart, alike = play(arrivals, (1, 1)), play(arrivals, None)
    assert apart.handed_over >= 35 and alike.handed_over == 0
    assert p99(apart) <= 0.5 * p99(alike)


@pytest.mark.parametrize("roles", [(1, 1), (2, 1), (1, 2)])
def test_requests_have_the_tokens_that_they_have_without_roles(roles: tuple[int, int]) -> None:
    arrivals = streams_and_prompts(1)
    apart, alike = play(arrivals, roles), play(arrivals, None)
    assert [each.output_tokens for each in apart.requests] == [each.output_tokens for each in alike.requests]
    assert apart.handed_over + apart.stayed == len(arrivals)
    assert sum(each.handed_over for each in apart.requests) == apart.handed_over > 0
    for each in apart.requests:
        assert each.arrived < each.first <= each.last
        # Those that decode have the answer, whoever has computed the prompt.
        assert each.replica >= roles[0]
    gaps = sum(each.output_tokens - 1 for each in apart.requests)
    assert apart.figures.gaps.total() == gaps == alike.figures.gaps.total()


def test_an_idle_replica_keeps_its_prompts() -> None:
    arrivals = [Arrival(2.0 * number, make_request(number, [number, *range(1, 4096)], 5)) for number in range(5)]
    assert (play(arrivals, (1, 1)).handed_over, play(arrivals, (1, 1)).stayed) == (0, 5)


def test_short_prompts_stay() -> None:
    assert play(streams_and_prompts(size=200), (1, 1)).handed_over == 0


def test_what_comes_too_slowly_is_computed_where_it_is_decoded() -> None:
    """Then streams have gaps as without roles: the replica that decodes reads nothing that is sooner computed."""
    arrivals = streams_and_prompts()
    slow, fast = (play(arrivals, (1, 1), transfer) for transfer in (SLOW, FAST))
    assert p99(slow) > 2 * p99(fast)


def test_the_way_of_blocks_is_between_the_first_token_and_the_second() -> None:
    arrivals = streams_and_prompts(prompts=1)
    (medium,), (fast,) = (
        [each for each in play(arrivals, (1, 1), transfer).requests if each.handed_over] for transfer in (2e9, FAST)
    )
    moved = 4096 * DEPLOYMENT.cache_bytes(1.0)
    assert medium.first == pytest.approx(fast.first)
    assert medium.longest_gap - fast.longest_gap == pytest.approx(moved / 2e9 - moved / FAST, rel=0.2)


def test_conversations_go_on_where_they_were() -> None:
    arrivals = [arrival._replace(session=str(number)) for number, arrival in enumerate(streams_and_prompts(2))]
    played = play(arrivals, (1, 1), further=(Turn(500, 30), Turn(50, 30)))
    assert len(played.requests) == 3 * len(arrivals) and played.handed_over > 0
    assert all(each.output_tokens > 1 for each in played.requests)


def test_prompts_that_are_cached_where_they_are_decoded_stay() -> None:
    """A later turn has nearly all of its prompt where its conversation was decoded."""
    arrivals = streams_and_prompts(3, prompts=6)
    schedulers = [build_scheduler(LIMITS, msgspec.structs.replace(CACHE, events=True)) for _ in range(2)]
    roles = Roles([0], [1])
    peers = {1: SimulatedPeer(FAST, schedulers[1])}
    replicas = [Replica(each, TIMES, place, peers.get(place)) for place, each in enumerate(schedulers)]
    turns = Conversations(
        Given(arrivals), lambda _number: (Turn(20, 10),), 0.1, len(arrivals), lambda number, size: [number] * size
    )
    played = play_fleet(replicas, turns, policy_of("prefix"), roles, peers)
    later = [each for each in played.requests if each.prompt_tokens > 4096]
    assert later and not any(each.handed_over for each in later)
    assert all(each.cached_tokens > 4000 for each in later)
