"""Gateways that share limits in a real store, which is killed and comes back."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from penstock.access.fleet_allowances import FleetAllowances
from penstock.core.errors import ConfigurationError
from penstock.metering.meters import Charge, Meter, Refusal, Reservation
from support.shared_store import SharedStore
from support.waiting import reached

# Longer than any run of the tests, so that nothing grows old meanwhile.
HOUR = 3600.0
REQUESTS = Meter("key/a", "requests", 100, HOUR)
TOKENS = Meter("key/a", "tokens", 10_000, HOUR)
OTHERS = Meter("key/b", "requests", 100, HOUR)
RUNNING = Meter("project/p", "running", 8)
BUDGET = Meter("key/c", "money", 1000, period="day 2026-11-28")


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStore]:
    opened = SharedStore(tmp_path_factory.mktemp("s"))
    yield opened
    opened.close()


@contextlib.asynccontextmanager
async def gateways(store: SharedStore, count: int):  # type: ignore[no-untyped-def]
    """So many, each of which knows of all others."""
    async with contextlib.AsyncExitStack() as stack:
        found = [FleetAllowances(store.url) for _ in range(count)]
        for each in found:
            await stack.enter_async_context(each.watched())
        await reached(lambda: all(len(each.gateways) == count for each in found))
        yield found


async def take(gateway: FleetAllowances, *charges: Charge, times: int = 60) -> list[Reservation]:
    found = await asyncio.gather(*(gateway.reserve("org", charges) for _ in range(times)))
    return [each for each in found if isinstance(each, Reservation)]


def test_while_the_store_is_away_each_has_a_part_of_what_is_left(store: SharedStore) -> None:
    async def run() -> None:
        async with gateways(store, 4) as all_:
            charge = Charge(REQUESTS, 1)
            # One of them has most of what is used: the others know it once they have asked, too.
            assert len(await take(all_[0], charge, times=50)) == 50
            for each in all_[1:]:
                assert len(await take(each, charge, times=2)) == 2
            assert await all_[3].look("org", [REQUESTS, OTHERS]) == [56, 0]
            store.kill()
            # As it was told last.
            assert await all_[3].look("org", [REQUESTS, OTHERS]) == [56, 0]
            apart = [await take(each, charge) for each in all_]
            assert all(each.apart for each in all_)
            # 44 are left, of which those know best who asked last: nobody goes on counting at nothing.
            assert [len(each) for each in apart] == [12, 12, 11, 11]
            assert len(await take(all_[0], Charge(OTHERS, 1))) == 25
            store.start()
            await reached(lambda: not any(each.apart for each in all_))
            found = await all_[3].reserve("org", [charge])
            assert found == Refusal(REQUESTS, 102, found.seconds) and 0 < found.seconds <= HOUR * 1.01
            assert len(await take(all_[1], Charge(OTHERS, 1), times=100)) == 75

    asyncio.run(run())


def test_what_is_settled_meanwhile_is_known_afterwards(store: SharedStore) -> None:
    async def run() -> None:
        async with gateways(store, 2) as (one, other):
            before = await take(one, Charge(TOKENS, 500), Charge(RUNNING, 1), times=3)
            store.kill()
            (during,) = await take(one, Charge(TOKENS, 500), Charge(RUNNING, 1), times=1)
            for each in (before[0], during):
                one.settle("org", each, [100, 0])
                # Said again, it changes nothing.
                one.settle("org", each, [0, 0])
            store.start()
            # What a gateway has under way counts where it is known to be there.
            await reached(lambda: one.apart is None and other.apart is None and one.gateway in other.gateways)
            one.settle("org", before[1], [700, 0])
            await reached(lambda: not one._tasks)
            found = await other.reserve("org", [Charge(TOKENS, 1), Charge(RUNNING, 1)])
            assert isinstance(found, Reservation) and found.used == (100 + 100 + 700 + 500 + 1, 2)

    asyncio.run(run())


def test_a_store_that_has_lost_everything_is_told_again(store: SharedStore) -> None:
    async def run() -> None:
        async with gateways(store, 2) as (one, other):
            assert len(await take(one, Charge(REQUESTS, 1), times=30)) == 30
            assert len(await take(other, Charge(REQUESTS, 1), times=20)) == 20
            with store.client() as client:
                client.flushall()

            def lost() -> bool:
                with store.client() as client:
                    used = client.hget(f"penstock:{{org}}:{REQUESTS.name}", "u")
                return used != b"50"

            await reached(lambda: not lost() and one.apart is None and other.apart is None)
            found = await one.reserve("org", [Charge(REQUESTS, 1)])
            assert isinstance(found, Reservation) and found.used == (51,)

    asyncio.run(run())


def test_a_budget_that_was_spent_before_stays_spent(store: SharedStore) -> None:
    """The ledger knows what gateways have used that are not there any more; a store that is lost does not."""

    async def run() -> None:
        async with gateways(store, 2) as (one, other):
            for each in (one, other):
                await each.at_least("org", BUDGET, 990)
            store.kill()
            assert [len(await take(each, Charge(BUDGET, 5))) for each in (one, other)] == [1, 1]
            # All of it is in the ledger now.
            await one.at_least("org", BUDGET, 1000)
            assert await one.look("org", [BUDGET]) == [1000]
            store.start()
            await reached(lambda: one.apart is None and other.apart is None)
            assert not await take(other, Charge(BUDGET, 1))
            with store.client() as client:
                client.flushall()
            await reached(lambda: one.apart is not None or other.apart is not None)
            await reached(lambda: one.apart is None and other.apart is None)
            found = await one.reserve("org", [Charge(BUDGET, 1)])
            assert found == Refusal(BUDGET, 1000, found.seconds)

    asyncio.run(run())


def test_one_that_hangs_is_left_and_what_waits_for_it_goes_on(store: SharedStore) -> None:
    async def run() -> None:
        async with gateways(store, 1) as (one,):
            assert len(await take(one, Charge(REQUESTS, 1), times=10)) == 10
            with store.client() as client:
                # All that is asked for waits.
                client.client_pause(600_000)
            assert len(await take(one, Charge(REQUESTS, 1), times=200)) == 90
            assert one.apart is not None
            store.kill()

    asyncio.run(run())


def test_what_was_asked_for_and_is_not_wanted_any_more_is_given_back(store: SharedStore) -> None:
    async def run() -> None:
        async with gateways(store, 1) as (one,):
            charges = [Charge(TOKENS, 500), Charge(RUNNING, 1)]
            for rounds in range(6):
                asking = asyncio.create_task(one.reserve("org", charges))
                # Before it is sent, on its way, and so on.
                for _ in range(rounds):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                if not asking.cancelled():
                    one.settle("org", asking.result(), [0, 0])

            def used() -> list[int]:
                return [one._own.used(meter, one._now()) for meter in (TOKENS, RUNNING)]

            await reached(lambda: not one._tasks and not one._asking and used() == [0, 0])
            found = await one.reserve("org", charges)
            assert isinstance(found, Reservation) and found.used == (500, 1)

    asyncio.run(run())


def test_a_gateway_that_is_not_known_yet_keeps_what_it_has_under_way(store: SharedStore) -> None:
    """One that has just begun, and asks before others look for it."""

    async def run() -> None:
        new = FleetAllowances(store.url)
        async with gateways(store, 1) as (one,), new.watched():
            one.gateways = [one.gateway]
            (mine,) = await take(new, Charge(RUNNING, 1), times=1)
            assert len(await take(one, Charge(RUNNING, 1), times=1)) == 1
            new.settle("org", mine, [0])
            await reached(lambda: not new._tasks and new.gateway in one.gateways)
            found = await one.reserve("org", [Charge(RUNNING, 1)])
            assert isinstance(found, Reservation) and found.used == (2,)

    asyncio.run(run())


def test_a_number_that_became_wrong_is_right_again(store: SharedStore) -> None:
    async def run() -> None:
        async with gateways(store, 1) as (one,):
            await take(one, Charge(RUNNING, 1), times=3)
            with store.client() as client:
                client.hset(f"penstock:{{org}}:{RUNNING.name}", f"g{one.gateway}", -5)

                def known() -> bytes:
                    return client.hget(f"penstock:{{org}}:{RUNNING.name}", f"g{one.gateway}")

                await reached(lambda: known() == b"3")

    asyncio.run(run())


def test_a_store_that_will_never_do_is_named(store: SharedStore) -> None:
    async def run(url: str) -> str:
        with pytest.raises(ConfigurationError) as refused:
            async with FleetAllowances(url).watched():
                pass
        return str(refused.value)

    with store.client() as client:
        client.config_set("requirepass", "secret")
    assert "Authentication required" in asyncio.run(run(store.url))


def test_a_store_that_is_not_there_yet_is_waited_for(store: SharedStore, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        store.kill()
        async with FleetAllowances(store.url).watched():
            pass
        alone = FleetAllowances(store.url)
        async with alone.watched():
            assert len(await take(alone, Charge(REQUESTS, 1), times=120)) == 100
            store.start()
            await reached(lambda: alone.apart is None)
            found = await alone.reserve("org", [Charge(REQUESTS, 1)])
            assert isinstance(found, Refusal) and found.used == 100

    asyncio.run(run())
    assert "goes on with one part of 1 of each limit" in caplog.text
