"""Meters that several gateways share, in Valkey or Redis: one script is one step for all of a request's meters."""

from collections.abc import Awaitable, Collection, Mapping, Sequence
from importlib.resources import files
from typing import Any

from penstock.access.script_line import ScriptLine
from penstock.metering.meters import Charge, Meter, Refusal, Reservation

_SCRIPT = files("penstock.access").joinpath("meters.lua").read_text()
# After which a total, and what is under way, is forgotten: budgets of a month are asked for within it.
_KEPT_SECONDS = 40 * 24 * 3600


class SharedMeters:
    """The meters in a store.

    Args:
        client: of redis.asyncio.
        gateway: a name that no other gateway has, nor had.
        prefix: of all keys.
        script: what is run there.
    """

    def __init__(self, client: Any, gateway: str, prefix: str = "penstock", script: str = _SCRIPT) -> None:
        self.gateway, self._prefix = gateway, prefix
        self._line = ScriptLine(client, script)

    async def reserve(
        self, group: str, charges: Sequence[Charge], gateways: Collection[str] = ()
    ) -> Reservation | Refusal:
        """What `Meters.reserve` does, on the store's clock.

        Args:
            group: of all these meters; a cluster keeps them together.
            gateways: that are there; what others have under way counts no longer.
        """
        arguments = ["reserve", self.gateway, len(gateways), *gateways]
        for meter, amount in charges:
            arguments += [_kind(meter), meter.seconds or _KEPT_SECONDS, meter.most, amount]
        keys = self._keys(group, [meter for meter, _ in charges])
        moment, refused, *found = await self._line.run(keys, arguments)
        if refused:
            used, seconds = found
            return Refusal(charges[refused - 1].meter, used, float(seconds))
        return Reservation(tuple(charges), float(moment), tuple(found))

    async def add(self, group: str, charges: Sequence[Charge], at: float) -> None:
        """Use more, or less, at a moment of the store's clock, whatever the bounds are."""
        arguments: list[object] = ["add", self.gateway, f"{at:.6f}"]
        for meter, amount in charges:
            arguments += [_kind(meter), meter.seconds or _KEPT_SECONDS, amount]
        await self._line.run(self._keys(group, [meter for meter, _ in charges]), arguments)

    async def at_least(self, group: str, meter: Meter, used: int) -> None:
        """So much of a total is used, where less is counted."""
        await self._line.run(self._keys(group, [meter]), ["at_least", self.gateway, _KEPT_SECONDS, used])

    async def look(self, group: str, meters: Sequence[Meter], gateways: Collection[str] = ()) -> list[int]:
        """What counts of each meter now. `gateways` are those that are there, as in `reserve`."""
        arguments: list[object] = ["look", self.gateway, len(gateways), *gateways]
        for meter in meters:
            arguments += [_kind(meter), meter.seconds or _KEPT_SECONDS]
        return [int(used) for used in await self._line.run(self._keys(group, meters), arguments)]

    def tell(self, group: str, used: Mapping[Meter, Mapping[int, int]]) -> Awaitable[object]:
        """What this gateway has used in all, of each meter by slot, whatever the store has of it: twice is as once.

        The store does it before all that is asked of it later, whether that is awaited or not.
        """
        arguments: list[object] = ["tell", self.gateway]
        for meter, slots in used.items():
            arguments += [_kind(meter), meter.seconds or _KEPT_SECONDS, len(slots)]
            arguments += [number for pair in slots.items() for number in pair]
        return self._line.run(self._keys(group, list(used)), arguments)

    def _keys(self, group: str, meters: Sequence[Meter]) -> list[str]:
        wholes = [f"{self._prefix}:{{{group}}}:{meter.name}" for meter in meters]
        return [key for whole in wholes for key in (whole, f"{whole}:{self.gateway}")]


def _kind(meter: Meter) -> str:
    if meter.unit == "running":
        return "running"
    return "total" if meter.seconds is None else "window"
