"""Trying a new model: a part of the requests for another one get it (splits), or it gets copies of them (shadows)."""

import asyncio
import hashlib
import logging
import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec
from starlette.types import Message

from penstock.core.errors import ConfigurationError
from penstock.gateway.asked import Asked

logger = logging.getLogger("penstock.gateway")

# Whose copies of requests are: no client pays for them.
TENANT = "shadow"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
_HUNDRED = 100.0
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# The last requests of a split by which it is judged, and how many there must be.
_JUDGED, _FEWEST = 100, 20


class Split(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the requests for one model get another one.

    Attributes:
        name: by which it is turned off.
        model, to: that they name, and that they get.
        percent: of the conversations; a request without one is drawn by itself.
        most_failures: part of the last 100 requests that may fail before the split turns itself off; None: it never
            does.
    """

    name: str
    model: str
    to: str
    percent: float
    most_failures: float | None = 0.1

    def check(self) -> None:
        """Raise ConfigurationError for what cannot be."""
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"The name of a split is {self.name[:80]!r}; it can have 31 small letters, digits, _ and -."
            )
        _check_models(f"The split {self.name}", self.model, self.to)
        _check_percent(f"The split {self.name}", self.percent)
        if self.most_failures is not None and not 0 < self.most_failures <= 1:
            raise ConfigurationError(
                f"most_failures of the split {self.name} is {self.most_failures:g}; it must be above 0 and at most 1."
            )


class Shadow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model gets copies of a part of the requests for another one; no client gets its answers.

    Attributes:
        model, to: whose requests are copied, and what gets them.
        percent: of the requests.
        most_requests: copies that are under way; further ones are not made.
    """

    model: str
    to: str
    percent: float
    most_requests: int = 4

    def check(self) -> None:
        """Raise ConfigurationError for what cannot be."""
        of = f"The shadow {self.to} of {self.model}"
        _check_models(of, self.model, self.to)
        _check_percent(of, self.percent)
        if self.most_requests < 1:
            raise ConfigurationError(f"{of} has most_requests = {self.most_requests}; it must be 1 or more.")


class _State:
    """One split as it is now.

    Attributes:
        percent: by the file, or by an administrator who has changed it.
        stopped: why it has turned itself off; None while it has not.
    """

    def __init__(self, split: Split) -> None:
        self.split = split
        self.percent = split.percent
        self.stopped: str | None = None
        self._failed: deque[bool] = deque(maxlen=_JUDGED)

    def ended(self, *, failed: bool) -> None:
        """A request of it has ended."""
        most = self.split.most_failures
        self._failed.append(failed)
        failures, count = sum(self._failed), len(self._failed)
        if most is None or self.stopped is not None or count < _FEWEST or failures <= most * count:
            return
        self.stopped = f"{failures} of the last {count} requests failed"
        logger.error(
            "The split %s turned itself off: %s; requests get %s.", self.split.name, self.stopped, self.split.model
        )

    def set(self, percent: float) -> None:
        """An administrator says what it is from now on, which also turns it on again."""
        self.percent, self.stopped = percent, None
        self._failed.clear()


class Splits:
    """All of a gateway.

    Args:
        draw: a number from 0 up to 1, another one at each call.
    """

    def __init__(self, splits: Sequence[Split], draw: Callable[[], float] = random.random) -> None:
        """Raises ConfigurationError where two have one name, or one model."""
        for what in ("name", "model"):
            given = [getattr(each, what) for each in splits]
            for value in given:
                if given.count(value) > 1:
                    raise ConfigurationError(f"Two splits have the {what} {value}; leave one out.")
        self._by_model = {each.model: _State(each) for each in splits}
        self._draw = draw

    def __bool__(self) -> bool:
        return bool(self._by_model)

    def model(self, model: str | None, session: str | None) -> str | None:
        """The other model that a request gets; None where it keeps its own. A session gets the same each time."""
        state = self._by_model.get(model or "")
        if state is None or state.stopped is not None:
            return None
        drawn = self._draw() if session is None else _place(state.split.name, session)
        return state.split.to if drawn * _HUNDRED < state.percent else None

    def ended(self, model: str, *, failed: bool) -> None:
        """A request for a model that got the other one has ended."""
        self._by_model[model].ended(failed=failed)

    def set(self, name: str, percent: float) -> bool:
        """Change a split; whether there is one of that name."""
        found = next((each for each in self._by_model.values() if each.split.name == name), None)
        if found is not None and (found.percent != percent or found.stopped is not None):
            found.set(percent)
            logger.warning("The split %s is %g%% from now on.", name, percent)
        return found is not None

    def told(self) -> list[dict[str, object]]:
        """All of them as they are now, for administrators."""
        return [
            {**msgspec.structs.asdict(each.split), "percent": each.percent, "stopped": each.stopped}
            for each in self._by_model.values()
        ]


class Shadows:
    """The copies that are under way.

    Args:
        draw: a number from 0 up to 1, another one at each call.
    """

    def __init__(self, shadows: Sequence[Shadow], draw: Callable[[], float] = random.random) -> None:
        self._shadows, self._draw = shadows, draw
        self._running: dict[Shadow, set[asyncio.Task[None]]] = {each: set() for each in shadows}

    def follow(self, model: str | None, copied: Callable[[str], "asyncio.Task[None]"]) -> None:
        """Have copies made of a request where that is to be; `copied` asks a model with one."""
        for shadow in self._shadows:
            running = self._running[shadow]
            if shadow.model != model or len(running) >= shadow.most_requests:
                continue
            if self._draw() * _HUNDRED < shadow.percent:
                task = copied(shadow.to)
                running.add(task)
                task.add_done_callback(running.discard)

    def models(self, model: str | None) -> set[str]:
        """Those that may get copies of the requests for a model."""
        return {each.to for each in self._shadows if each.model == model}

    async def close(self) -> None:
        """End what is under way."""
        tasks = [task for running in self._running.values() for task in running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def conversation(asked: Asked, named: str | None) -> str | None:
    """What all requests of a conversation have in common from the first on; None where nothing is.

    `named` is what a header says. Else it is the user, or what the conversation begins with: the system's text and what
    the user has said first.
    """
    if named is not None or asked.user is not None:
        return named or asked.user
    opening = hashlib.blake2b(bytes(asked.system), digest_size=8)
    try:
        for message in msgspec.json.decode(asked.messages, type=list[msgspec.Raw]):
            opening.update(bytes(message))
            if msgspec.json.decode(message, type=_Role).role == "user":
                return opening.hexdigest()
    except (msgspec.DecodeError, RecursionError):
        # A replica says what is wrong with it.
        return None
    return None


class _Role(msgspec.Struct):
    role: str = ""


def unstored(path: str, body: bytes) -> bytes:
    """The body of a copy, of whose answer nothing is kept."""
    return msgspec.json.encode({**_decode(body), "store": False}) if path == "/v1/responses" else body


async def no_client() -> Message:
    """What comes from the client of a copy: nothing, for as long as it lasts."""
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


async def forgotten(message: Message) -> None:
    """The place where answers to copies go."""


def _place(name: str, session: str) -> float:
    """Where a session is among all, from 0 up to 1: it moves to another model only as the percentage passes it."""
    digest = blake2b(f"{name}\0{session}".encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def _check_models(of: str, model: str, to: str) -> None:
    if not model or not to or model == to:
        raise ConfigurationError(f"{of} leads from {model!r} to {to!r}; they must be two models' names.")


def _check_percent(of: str, percent: float) -> None:
    if not 0 <= percent <= _HUNDRED:
        raise ConfigurationError(f"{of} has percent = {percent:g}; it must be from 0 to 100.")
