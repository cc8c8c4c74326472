"""The replicas of a gateway: what each serves, and whether it can be sent anything."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from enum import StrEnum

from penstock.api.made_for import TASKS
from penstock.core.errors import ModelNotFound
from penstock.gateway.connection import Connection
from penstock.gateway.errors import NoReplica
from penstock.gateway.exchange import Exchange
from penstock.gateway.hosted import Hosted
from penstock.gateway.pool import Address, Pool, Sender
from penstock.routing.told import ReplicaState


class State(StrEnum):
    """What is known of a replica."""

    UNKNOWN = "unknown"
    READY = "ready"
    # It was ready and has not been heard of for longer than it should: it is taken only where no other is left.
    STALE = "stale"
    # It says that it cannot answer now.
    UNREADY = "unready"
    UNREACHABLE = "unreachable"
    DRAINING = "draining"
    # It has left, and may come back.
    GONE = "gone"


class Replica:
    """One of them.

    Attributes:
        place: in the fleet; no other has it while this one is there, or has anything under way.
        sender: sends it requests.
        key: that it wants of those who ask; None where it wants none of the gateway's.
        hosted: what makes it of a provider; None for own machines.
        models: that it serves.
        why: it cannot be sent anything; empty where it can.
        told, heard: what it says of itself, where it does, and when that came last, on the event loop's clock.
        under_way: what it was asked and has not answered to the end, in order.
    """

    def __init__(
        self, place: int, sender: Sender, key: str | None, news: Callable[[], None], hosted: Hosted | None = None
    ) -> None:
        self.place = place
        self.sender = sender
        self.key = key
        self.hosted = hosted
        self.state = State.UNKNOWN
        self.models: tuple[str, ...] = ()
        self.why = "it has not answered yet"
        self.told: ReplicaState | None = None
        self.heard = float("-inf")
        self.under_way: dict[Exchange, None] = {}
        self._news = news

    @property
    def pool(self) -> Pool:
        """Connections to an own machine."""
        assert isinstance(self.sender, Pool), "a provider may have none"
        return self.sender

    @property
    def name(self) -> str:
        """Its URL, or what the operator calls it, by which it is told apart."""
        return str(self.pool.address) if self.hosted is None else self.hosted.name

    @property
    def computes_prompts(self) -> bool:
        """Whether it says that others go on behind the prompts that it computes."""
        return self.told is not None and self.told.role == "prefill"

    @contextlib.asynccontextmanager
    async def ask(self, *parts: bytes) -> AsyncIterator[tuple[Connection, Exchange]]:
        """A request on a connection of its own, which is left where the block ends before its answer does.

        Raises ReplicaBroken where none can be made.
        """
        async with self.pool.apart(*parts) as (connection, exchange):
            self.under_way[exchange] = None
            try:
                yield connection, exchange
            finally:
                self.under_way.pop(exchange, None)

    def is_ready(self, models: Sequence[str]) -> None:
        """It can answer with these models."""
        news = self.state != State.READY or self.models != tuple(models)
        self.state, self.models, self.why = State.READY, tuple(models), ""
        if news:
            self._news()

    def is_not(self, state: State, why: str) -> None:
        """It cannot be sent anything, or only where nothing else is left."""
        self.state, self.why = state, why


class Replicas:
    """All of them, by their places.

    Attributes:
        changed: set when one has become ready, or serves other models.
        on_news: called then.
        expected: models that replicas have at times.
    """

    def __init__(self, expected: Sequence[str] = ()) -> None:
        self.all: list[Replica] = []
        self.expected = tuple(expected)
        self.changed = asyncio.Event()
        self.on_news: Callable[[], None] = lambda: None

    def _news(self) -> None:
        self.changed.set()
        self.on_news()

    def add(
        self, sender: Sender, key: str | None = None, place: int | None = None, hosted: Hosted | None = None
    ) -> Replica:
        """One more, in the next place, or in that of one that is gone."""
        if place is None:
            place = len(self.all)
            self.all.append(Replica(place, sender, key, self._news, hosted))
        else:
            self.all[place] = Replica(place, sender, key, self._news, hosted)
        return self.all[place]

    def of(self, address: Address) -> Replica | None:
        """The own machine at an address, which may be gone."""
        return next((each for each in self.all if each.hosted is None and each.pool.address == address), None)

    @property
    def there(self) -> list[Replica]:
        """Those that are not gone."""
        return [each for each in self.all if each.state != State.GONE]

    @property
    def machines(self) -> list[Replica]:
        """Those that are not gone, without providers."""
        return [each for each in self.all if each.hosted is None and each.state != State.GONE]

    @property
    def models(self) -> list[str]:
        """That can be asked for now, each once."""
        usable = self._in(State.READY) or self._in(State.STALE)
        hosted = (model for each in self.all if each.hosted is not None for model in each.models)
        return list(dict.fromkeys((*(model for each in usable for model in each.models), *hosted)))

    def made_for(self, path: str) -> str | None:
        """The model that a request to an endpoint gets which names none; None where no machine tells any.

        It is the one that is nearest to what the endpoint does, of the first machine with such a one, as at a server
        with several models.
        """
        task = TASKS.get(path, "")
        told = [each.told.made_for.get(task) for each in self.machines if each.told is not None]
        nearest = min((each for each in told if each is not None), key=lambda each: each.detour, default=None)
        return None if nearest is None else nearest.model

    def hosting(self, model: str) -> list[Replica]:
        """The providers with a model, in the order in which they are asked."""
        return [each for each in self.all if each.hosted is not None and model in each.models]

    def may_serve(self, model: str) -> bool:
        """Whether an own machine has a model, or may turn out to: it has not said what it has."""
        return any(model in each.models or not each.models for each in self.machines)

    def described(self, model: str) -> tuple[str, int]:
        """The own name of a model, and the tokens of prompt and answer that all take on; 0 where nothing says it."""
        told = [each.told for each in self.there if each.told is not None and model in each.told.models]
        described = [each.described(model) for each in told]
        longest = min((length for _, length in described if length), default=0)
        return (described[0][0] if described else model), longest

    def candidates(self, model: str | None) -> list[int]:
        """Places of own machines that can answer with a model, or with any. Raises ModelNotFound, NoReplica."""
        able = [
            [each for each in self._in(state) if model is None or model in each.models]
            for state in (State.READY, State.STALE)
        ]
        # Those that compute prompts for others answer by themselves only where nothing else can.
        decoding = [[each for each in some if not each.computes_prompts] for some in able]
        for having in (*decoding, *able):
            if having:
                return [each.place for each in having]
        # What is not known yet may have it.
        loading = any(not each.models for each in (*self._in(State.UNKNOWN), *self._in(State.UNREADY)))
        hosted = model is not None and bool(self.hosting(model))
        known = self._in(State.READY) or (self.all and not self.machines)
        nowhere = not hosted and not any(model in each.models for each in self.all)
        if known and not loading and nowhere and model in self.expected:
            raise NoReplica(f"No replica has the model {model!r} now, which is expected to come; try again later.")
        if known and not loading and nowhere:
            raise ModelNotFound(f"No replica has the model {model!r}; there are {', '.join(self.models)}.")
        there = self.machines
        if hosted and model is not None and not self.may_serve(model):
            raise NoReplica(
                f"No own machine has the model {model!r}, and no provider of it can be asked now; try again later."
            )
        if not there:
            raise NoReplica("No replica can answer now: none has joined; try again later.")
        raise NoReplica(_nobody([each for each in there if model is None or model in each.models] or there))

    @property
    def prefilling(self) -> list[Replica]:
        """Own machines that are ready to compute prompts for others."""
        return [each for each in self._in(State.READY) if each.computes_prompts]

    def _in(self, state: State) -> list[Replica]:
        return [each for each in self.all if each.state == state and each.hosted is None]


def _nobody(replicas: Sequence[Replica]) -> str:
    first = next(each for each in replicas if each.why)
    others = f", nor can {len(replicas) - 1} others" if len(replicas) > 1 else ""
    return f"No replica can answer now: {first.name} cannot, since {first.why}{others}; try again later."
