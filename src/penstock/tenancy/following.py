"""Keeps a gateway's directory as the database has it, and records there which keys were refused."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from penstock.core.errors import ConfigurationError, PenstockError
from penstock.tenancy.directory import Directory
from penstock.tenancy.records import Changes
from penstock.tenancy.registry import Registry

if TYPE_CHECKING:
    from penstock.tenancy.oidc import Issuer

logger = logging.getLogger("penstock.gateway")

# Between two looks: a key that is revoked is taken for so long at most, and for the time of one look.
_LOOK_SECONDS = 0.5
# Different refusals that are recorded of one look; further ones are counted together.
_MOST_REFUSALS = 100


class Following:
    """Of one gateway.

    Args:
        learned: is told what has changed, and the ids of keys whose requests have to end.
        issuer: whose tokens are taken beside keys.

    Attributes:
        directory: what the database says.
        away: why the database does not answer; None while it does.
    """

    def __init__(
        self,
        registry: Registry,
        learned: Callable[[Changes, list[str]], Awaitable[None]],
        issuer: "Issuer | None" = None,
    ) -> None:
        self.directory = Directory(issuer=issuer)
        self.away: str | None = None
        self._registry, self._learned = registry, learned
        self._refused: Counter[tuple[str, str]] = Counter()
        self._reached: set[tuple[str, str, float]] = set()

    def reached(self, owner: str, period: str, share: float) -> None:
        """This part of a budget is used or reserved; other gateways may find it, too."""
        self._reached.add((owner, period, share))

    def refused(self, client: str, why: str) -> None:
        """A request was refused, since it showed no key that is taken."""
        what = (client, why)
        if what not in self._refused and len(self._refused) >= _MOST_REFUSALS:
            what = ("others", "")
        self._refused[what] += 1

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While the block runs, changes are learned. Raises ConfigurationError where the database does not answer."""
        try:
            await self._look()
        except PenstockError as error:
            raise ConfigurationError(f"Nobody's key is known yet: {error.message}") from None
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with contextlib.suppress(PenstockError):
                await self._record()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self._look()
                await self._record()
            except PenstockError as error:
                self._leave(error.message)
            except Exception as error:
                logger.exception("what has changed of tenants could not be learned")
                self._leave(type(error).__name__)
            else:
                if self.away is not None:
                    logger.warning("The database of tenants answers again.")
                self.away = None

    def _leave(self, why: str) -> None:
        if self.away is None:
            logger.error("Keys are taken as they were known last, and none that is new or revoked: %s", why)
        self.away = why

    async def _look(self) -> None:
        changes = await asyncio.to_thread(self._registry.changes, self.directory.revision)
        if changes.revision != self.directory.revision:
            await self._learned(changes, self.directory.learn(changes))

    async def _record(self) -> None:
        refused, self._refused = self._refused, Counter()
        reached, self._reached = self._reached, set()
        try:
            await asyncio.to_thread(self._note, refused, reached)
        except PenstockError:
            self._refused.update(refused)
            self._reached |= reached
            raise

    def _note(self, refused: Counter[tuple[str, str]], reached: set[tuple[str, str, float]]) -> None:
        for (client, why), times in refused.items():
            detail: dict[str, Any] = {"why": why, "times": times}
            self._registry.note(client, "key.refused", "", detail)
        for owner, period, share in sorted(reached):
            self._registry.note_once("gateway", "budget.share", owner, {"period": period, "share": share})
