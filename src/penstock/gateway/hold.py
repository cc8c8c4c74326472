"""Requests that wait, while no replica can answer them."""

import asyncio
from collections.abc import Callable

from penstock.gateway.errors import NoReplica
from penstock.gateway.options import HoldOptions
from penstock.gateway.replicas import Replicas


class Hold:
    """Lets them wait for a time, and not too many of them.

    Attributes:
        waiting: how many wait now.
    """

    def __init__(self, replicas: Replicas, options: HoldOptions) -> None:
        self._replicas, self._options = replicas, options
        self.waiting = 0

    async def candidates(self, model: str | None) -> list[int]:
        """Places of replicas that can answer, once there are any. Raises ModelNotFound, NoReplica."""
        nobody = ""

        def found() -> list[int]:
            nonlocal nobody
            try:
                return self._replicas.candidates(model)
            except NoReplica as error:
                nobody = error.message
                return []

        full = self.waiting >= self._options.requests
        places = await self.until(found)
        if places:
            return places
        if not self._options.seconds:
            raise NoReplica(nobody)
        waited = f"and {self.waiting} requests wait already" if full else f"after a wait of {self._options.seconds:g} s"
        raise NoReplica(f"{nobody.rpartition(';')[0]}, {waited}; try again later.")

    async def until(self, found: Callable[[], list[int]]) -> list[int]:
        """What is found, once there is any; nothing where it takes too long, or too many wait."""
        ends = asyncio.get_running_loop().time() + self._options.seconds
        if self.waiting >= self._options.requests:
            return found()
        self.waiting += 1
        try:
            while not (places := found()):
                self._replicas.changed.clear()
                async with asyncio.timeout_at(ends):
                    await self._replicas.changed.wait()
            return places
        except TimeoutError:
            return []
        finally:
            self.waiting -= 1
