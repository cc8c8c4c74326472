"""Slots as values of Mooncake Store: memory that machines lend it, and a master that knows where each value is.

How much there may be is the sum of what is lent; the master evicts what was not read for longest.
"""

import http.client
import importlib.util

from penstock.cache.shelf_room import Name
from penstock.core.config import SharedStore
from penstock.runtime.mooncake_client import MooncakeClient, MooncakeFailed, MooncakeRefused
from penstock.runtime.mooncake_process import GET, PUT, READY, REPLACE, Setup
from penstock.runtime.sealing import Sealing
from penstock.runtime.slot_names import slot_called, text_of

# For the list of keys: a connection, and each piece of the answer.
_LIST_SECONDS = 5.0
# Names of values that were read, which are remembered.
_MOST_READ = 1 << 16


class SlotMooncake:
    """Values of a cluster, whose keys begin with a part of theirs.

    Args:
        part: of one model's slots.
        slot_bytes: of the largest one.

    Raises ImportError where Mooncake is not installed.
    """

    parallel = 4
    failures: tuple[type[Exception], ...] = (OSError,)
    refusals: tuple[type[Exception], ...] = (MooncakeRefused,)

    def __init__(self, shared: SharedStore, part: str, slot_bytes: int) -> None:
        access = shared.mooncake
        assert access is not None
        if importlib.util.find_spec("mooncake") is None:
            raise ImportError("mooncake")
        host, _, port = shared.address.rpartition(":")
        self._prefix = f"penstock:kv:{part}:"
        self._host, self._metrics_port = host, access.metrics_port
        # Values that are written and read at a time, and as much again for what is between them.
        buffer_bytes = 2 * 2 * self.parallel * (Sealing.beside + slot_bytes) + (1 << 20)
        setup = Setup(
            host, int(port), access.metadata, access.protocol, access.devices, access.segment_bytes, buffer_bytes
        )
        self._client = MooncakeClient(setup)
        self._read: set[Name] = set()

    def names(self) -> list[Name]:
        """Of all of this part: the master lists all keys of the cluster, by HTTP."""
        self._client.call(READY)
        found = (line.removeprefix(self._prefix) for line in self._keys() if line.startswith(self._prefix))
        return [name for each in found if (name := slot_called(each)) is not None]

    def _keys(self) -> list[str]:
        connection = http.client.HTTPConnection(self._host, self._metrics_port, timeout=_LIST_SECONDS)
        try:
            connection.request("GET", "/get_all_keys")
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._list_failed(str(error) or type(error).__name__) from error
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise self._list_failed(f"HTTP {answer.status}")
        return content.decode("ascii", "replace").splitlines()

    def _list_failed(self, why: str) -> MooncakeFailed:
        where = f"{self._host}:{self._metrics_port}"
        return MooncakeFailed(f"the keys cannot be listed by Mooncake's master at its metrics_port, {where}: {why}")

    def get(self, name: Name, most: int) -> bytes | None:
        """A value; None, too, while the machine that has it is away."""
        value = self._client.call(GET, self._key(name), most)
        if value is not None and len(self._read) < _MOST_READ:
            self._read.add(name)
        return value

    def put(self, name: Name, value: bytes | bytearray, weight: float = 0.0) -> tuple[Name, ...]:
        """Write one; what goes for it, the master does not say.

        What others may be reading stays as it is, but for what was read here, and was no good if it is written again.
        """
        operation = REPLACE if name in self._read else PUT
        self._client.call(operation, self._key(name), len(value), value)
        self._read.discard(name)
        return ()

    def _key(self, name: Name) -> str:
        return self._prefix + text_of(name)
