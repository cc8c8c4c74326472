"""The script in a real store does what the meters in memory do, on a clock that tests set."""

import asyncio
from collections.abc import Iterator
from math import inf, isclose
from typing import Any

import pytest
import redis.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.access import shared_meters
from penstock.access.shared_meters import SharedMeters
from penstock.metering.meters import Charge, Meter, Meters, Refusal, Reservation
from support.shared_store import SharedStore

METERS = (
    Meter("key/a", "requests", 5, 60.0),
    Meter("key/a", "tokens", 1000, 60.0),
    Meter("key/b", "tokens", 700, 60.0),
    Meter("project/p", "tokens", 1500, 60.0),
    Meter("project/p", "running", 4),
    Meter("project/p", "money", 10**12, period="2026-11"),
)
# The store's own clock cannot be set, so that the script reads another one.
ON_A_CLOCK = shared_meters._SCRIPT.replace("redis.call('TIME')", "redis.call('LRANGE', 'clock', 0, 1)")
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"),
            st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
            st.lists(st.integers(0, 600), min_size=6, max_size=6),
        ),
        st.tuples(st.just("end"), st.integers(0, 100), st.sampled_from([0.0, 0.3, 1.0, 1.5])),
        st.tuples(st.just("pass"), st.one_of(st.floats(0, 2), st.floats(0, 150)), st.none()),
    ),
    max_size=40,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStore]:
    opened = SharedStore(tmp_path_factory.mktemp("s"))
    yield opened
    opened.close()


async def set_clock(client: Any, now: float) -> None:
    await client.delete("clock")
    await client.rpush("clock", int(now), round(now % 1 * 1e6))


async def compare(url: str, steps: list[tuple[str, Any, Any]]) -> None:
    async with redis.asyncio.Redis.from_url(url) as client:
        await client.flushall()
        shared, own = SharedMeters(client, "g1", script=ON_A_CLOCK), Meters()
        now, under_way = 1_000_000.0, []  # type: tuple[float, list[tuple[Reservation, Reservation]]]
        for verb, first, second in steps:
            if verb == "pass":
                now = round(now + first, 6)
                continue
            await set_clock(client, now)
            if verb == "ask":
                charges = [
                    Charge(METERS[each], 1 if METERS[each].unit in ("requests", "running") else second[each])
                    for each in first
                ]
                found, expected = await shared.reserve("org", charges), own.reserve(charges, now)
                if isinstance(expected, Refusal):
                    assert isinstance(found, Refusal)
                    assert (found.meter, found.used) == (expected.meter, expected.used)
                    assert found.seconds == expected.seconds or isclose(found.seconds, expected.seconds, abs_tol=1e-4)
                else:
                    assert isinstance(found, Reservation) and found.used == expected.used
                    assert isclose(found.at, now, abs_tol=2e-6)
                    under_way.append((found, expected))
            elif under_way:
                theirs, ours = under_way[first % len(under_way)]
                amounts = [0 if meter.unit == "running" else int(amount * second) for meter, amount in ours.charges]
                for change, at in theirs.settled(amounts, now):
                    await shared.add("org", [change], at)
                own.settle(ours, amounts, now)
        await set_clock(client, now)
        assert await shared.look("org", METERS) == [own.used(meter, now) for meter in METERS]


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_it_is_what_meters_in_memory_do(store: SharedStore, steps: list[tuple[str, Any, Any]]) -> None:
    asyncio.run(compare(store.url, steps))


def test_what_a_gateway_that_is_gone_has_under_way_counts_no_longer(store: SharedStore) -> None:
    meter = Meter("project/q", "running", 3)

    async def run() -> None:
        async with redis.asyncio.Redis.from_url(store.url) as client:
            gone, here = SharedMeters(client, "gone"), SharedMeters(client, "here")
            for _ in range(2):
                assert isinstance(await gone.reserve("q", [Charge(meter, 1)], ["here", "gone"]), Reservation)
            last = await here.reserve("q", [Charge(meter, 1)], ["here", "gone"])
            assert isinstance(last, Reservation) and last.used == (3,)
            assert await here.reserve("q", [Charge(meter, 1)], ["here", "gone"]) == Refusal(meter, 3, inf)
            found = await here.reserve("q", [Charge(meter, 1)], ["here"])
            assert isinstance(found, Reservation) and found.used == (2,)
            looked = [await here.look("q", [meter], there) for there in (["here"], ["here", "gone"])]
            assert looked == [[2], [4]]

    asyncio.run(run())


def test_gateways_that_ask_at_once_have_no_more_than_one_would(store: SharedStore) -> None:
    meter = Meter("key/many", "requests", 100, 60.0)

    async def ask(url: str, gateway: str) -> int:
        async with redis.asyncio.Redis.from_url(url) as client:
            shared = SharedMeters(client, gateway)
            found = await asyncio.gather(*(shared.reserve("many", [Charge(meter, 1)]) for _ in range(60)))
            return sum(isinstance(each, Reservation) for each in found)

    async def run() -> list[int]:
        return await asyncio.gather(*(ask(store.url, f"g{number}") for number in range(4)))

    assert sum(asyncio.run(run())) == 100


@given(
    used=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(0, 100), st.floats(0, 20)), max_size=20),
    lost=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_what_gateways_have_used_is_told_again(
    store: SharedStore, used: list[tuple[int, int, int, float]], lost: bool
) -> None:
    """Whether the store has lost it or not, and as often as it is told."""

    async def run() -> None:
        async with redis.asyncio.Redis.from_url(store.url) as client:
            await client.flushall()
            gateways = [SharedMeters(client, f"g{number}", script=ON_A_CLOCK) for number in range(2)]
            own, both, now = [Meters(), Meters()], Meters(), 1_000_000.0
            for place, each, amount, seconds in used:
                now = round(now + seconds, 6)
                await set_clock(client, now)
                await gateways[place].add("org", [Charge(METERS[each], amount)], now)
                own[place].add(METERS[each], amount, now)
                both.add(METERS[each], amount, now)
            if lost:
                await client.flushall()
            await set_clock(client, now)
            for place in (0, 1, 0):
                await gateways[place].tell("org", {meter: own[place].slots(meter, now) for meter in METERS})
            for meter in METERS:
                most = replace(meter, most=0)
                found = await gateways[0].reserve("org", [Charge(most, 1)], ["g1"])
                assert isinstance(found, Refusal) and found.used == both.used(meter, now)

    asyncio.run(run())


def test_what_the_ledger_knows_before_its_gateway_tells_it_counts_once(store: SharedStore) -> None:
    """A gateway that was cut off from the store enters what it uses into the ledger, which another one compares."""

    async def run() -> None:
        async with redis.asyncio.Redis.from_url(store.url) as client:
            await client.flushall()
            here, away = SharedMeters(client, "g0"), SharedMeters(client, "g1")
            money = METERS[-1]
            await away.add("org", [Charge(money, 100)], 1_000_000.0)
            found = []
            for ledger, told in ((400, 100), (400, 400), (500, 450), (0, 600), (0, 650), (600, 650)):
                await here.at_least("org", money, ledger)
                await away.tell("org", {money: {0: told}})
                found += await here.look("org", [money])
            assert found == [400, 400, 500, 600, 650, 650]

    asyncio.run(run())
