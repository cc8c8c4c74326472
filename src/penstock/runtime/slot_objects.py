"""Slots as objects of a bucket of S3, or of what has its API: an object is there as a whole or not at all.

Credentials are those of the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, or those of the machine). How much
there may be, and for how long, is the bucket's to bound, by a rule for its lifecycle.
"""

from datetime import timedelta
from typing import Any

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from penstock.cache.shelf_room import Name
from penstock.core.config import SharedStore
from penstock.runtime.slot_names import ABOUT, slot_called, text_of

# For a connection, and for a whole answer.
_CONNECT_TIME, _ANSWER_TIME = timedelta(seconds=2), timedelta(seconds=10)


class SlotObjects:
    """Objects below the prefix of a store and a part of theirs.

    Args:
        part: of one model's slots.
        about: what an object beside them says of them.
    """

    # A request takes some 10 ms, whatever its size.
    parallel = 8
    failures: tuple[type[Exception], ...] = (BaseError, OSError)
    # A bucket that is not there is a FileNotFoundError.
    refusals: tuple[type[Exception], ...] = (FileNotFoundError, PermissionDeniedError, UnauthenticatedError)

    def __init__(self, shared: SharedStore, part: str, about: bytes) -> None:
        self._about, self._said = about, False
        of_environment: dict[str, Any] = {}
        if shared.endpoint is not None:
            of_environment["endpoint"] = shared.endpoint
        if shared.region is not None:
            of_environment["region"] = shared.region
        self._store = S3Store(
            shared.address,
            prefix=f"{shared.prefix}/{part}".lstrip("/"),
            client_options={
                "connect_timeout": _CONNECT_TIME,
                "timeout": _ANSWER_TIME,
                "allow_http": shared.endpoint is not None and shared.endpoint.startswith("http://"),
            },
            # What fails is a miss; the tier asks again later.
            retry_config={"max_retries": 0, "retry_timeout": _ANSWER_TIME},
            **of_environment,
        )

    def names(self) -> list[Name]:
        """Of all below the prefix."""
        if not self._said:
            # Where there is no bucket, a list does not say so in a way that can be told from other failures.
            self._store.put(ABOUT, self._about, use_multipart=False)
            self._said = True
        paths = (each["path"] for some in self._store.list() for each in some)
        return [name for path in paths if (name := slot_called(path.rpartition("/")[2])) is not None]

    def get(self, name: Name, most: int) -> bytes | None:
        """An object, whose size is looked at before it is read."""
        try:
            found = self._store.get(text_of(name))
        except FileNotFoundError:
            return None
        return bytes(found.bytes()) if found.meta["size"] <= most else None

    def put(self, name: Name, value: bytes | bytearray, weight: float = 0.0) -> tuple[Name, ...]:
        """Write one by one request; nothing has to go for it."""
        self._store.put(text_of(name), value, use_multipart=False)
        return ()
