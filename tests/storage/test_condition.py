"""What is known of a disk, and when that changes."""

import asyncio
import errno

from penstock.storage.condition import StorageCondition
from penstock.storage.errors import StorageFull, StorageUnavailable
from support.waiting import patiently, reached

FULL = OSError(errno.ENOSPC, "no space")


def test_a_failure_beside_a_probe_that_succeeds_stays() -> None:
    """The probe found room that somebody else has taken since, or that is too little for what has failed."""

    async def main() -> None:
        condition = StorageCondition(0.001, 0.001)
        probes = 0
        beside: list[StorageUnavailable] = []
        stays = asyncio.Event()

        async def probe() -> None:
            nonlocal probes
            probes += 1
            if probes == 1:
                beside.append(await asyncio.to_thread(condition.explain, FULL))
            elif probes == 2:
                stays.set()
                await asyncio.Event().wait()

        async with condition.watched(probe):
            condition.explain(FULL)
            await patiently(stays.wait())
            assert condition.failure is beside[0]
            assert condition.failures == {"full": 2, "failed": 0}

    asyncio.run(main())


def test_a_disk_that_fails_again_is_asked_again() -> None:
    async def main() -> None:
        condition = StorageCondition(0.001, 0.001)
        works = asyncio.Event()

        async def probe() -> None:
            if not works.is_set():
                raise StorageFull("full")

        async with condition.watched(probe):
            for _ in range(3):
                works.clear()
                condition.explain(FULL)
                await asyncio.sleep(0.01)
                assert condition.failure is not None
                works.set()
                await reached(lambda: condition.failure is None)

    asyncio.run(main())
