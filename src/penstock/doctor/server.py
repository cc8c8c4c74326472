"""Looks at a running server, twice."""

import asyncio
from collections.abc import Callable

import msgspec

from penstock.bench.load.address import parse_address
from penstock.bench.load.client import Client, TransferError
from penstock.bench.load.probe import error_message
from penstock.core.errors import ConfigurationError
from penstock.doctor.observation import Observation, observe
from penstock.observability.stats import Stats

_PATH = "/v1/stats"
_LARGEST = 16 << 20
_TIMEOUT = 15.0


async def look(url: str, key: str | None, seconds: float, tick: Callable[[float], None]) -> Observation:
    """What a server did in `seconds`; `tick` hears how many have passed. Raises ConfigurationError."""
    client = Client(parse_address(url), key, _TIMEOUT)
    try:
        first = await read_stats(client)
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (passed := loop.time() - began) < seconds:
            tick(passed)
            await asyncio.sleep(min(0.25, seconds - passed))
        return observe(first, await read_stats(client))
    finally:
        client.close()


async def read_stats(client: Client) -> Stats:
    """The answer of `GET /v1/stats`. Raises ConfigurationError where there is none that can be read."""
    found, url = bytearray(), client.address.url

    def take(data: bytes, _: float) -> bool:
        found.extend(data)
        return len(found) > _LARGEST

    try:
        exchange = await client.fetch("GET", _PATH, None, take)
    except TransferError as error:
        raise ConfigurationError(
            f"Nothing usable answers at {url}: {error.message}; give the address of a server that runs."
        ) from None
    if exchange.status in (401, 403):
        raise ConfigurationError(
            f"{url} wants another API key (HTTP {exchange.status}: {error_message(exchange.body)}); give it in "
            "PENSTOCK_API_KEY or with --api-key -."
        )
    if exchange.status != 200:
        said = error_message(exchange.body)
        raise ConfigurationError(
            f"{url}{_PATH} answers HTTP {exchange.status} ({said}); servers of Penstock say there how they are, and "
            "others cannot be diagnosed."
        )
    try:
        return msgspec.json.decode(found, type=Stats)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{url}{_PATH} is of another release, and not understood: {error}.") from None
