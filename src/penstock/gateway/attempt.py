"""A request at one replica, and what is learnt from what becomes of it there."""

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from penstock.gateway.caches import Expected
from penstock.gateway.exchange import Head
from penstock.gateway.replicas import Replica
from penstock.gateway.ways import Try
from penstock.metering.prices import Price
from penstock.providers.answering import Answering
from penstock.routing.ask import Choice
from penstock.routing.loads import Sent

if TYPE_CHECKING:
    from penstock.gateway.dispatch import Dispatch

_GOOD = 200


class Provided(NamedTuple):
    """What is known of an attempt at a provider.

    Attributes:
        answering: writes its answer, and counts it.
        price: of the model there.
    """

    answering: Answering
    price: Price


class Attempt:
    """A request at one replica, counted there until it is over.

    Attributes:
        replica, choice: where it is, and why there.
        told: what is remembered of it.
        hands_over: whether it computes the prompt only.
        provided: what a provider has told of it, and the price there; None at own machines.
    """

    def __init__(
        self,
        dispatch: "Dispatch",
        replica: Replica,
        choice: Choice,
        sent: Sent,
        expected: Expected | None,
        *,
        is_trial: bool,
    ) -> None:
        self._dispatch = dispatch
        self.replica, self.choice = replica, choice
        self._before = replica.told
        self.told = Try(replica.name, choice.reason, choice.hit, 0.0)
        self._sent, self._expected = sent, expected
        self._is_trial = is_trial
        self.hands_over = False
        self.provided: Provided | None = None

    def is_refused(self, head: Head) -> bool:
        """Whether others may answer instead: what a provider does not take, machines may."""
        return head.is_refusal or (self.replica.hosted is not None and head.status != _GOOD)

    @property
    def has_begun_anew(self) -> bool:
        """Whether the replica is another instance by now than the one that was asked, as far as it tells."""
        before, now = self._before, self.replica.told
        return before is not None and now is not None and before.instance != now.instance

    def answering(self) -> None:
        """The answer has begun, which says that the replica can be tried by others."""
        self._dispatch.router.loads.answering(self._sent)
        self._end_trial()

    def succeeded(self) -> None:
        """The answer is whole, or a refusal that is the request's own fault."""
        self._is_trial = False
        self._dispatch.outliers.succeeded(self.replica.place)

    def failed(self) -> None:
        """The replica broke, or answered that something is wrong with it."""
        self._is_trial = False
        self._dispatch.figures.failures[self.replica.place] += 1
        self._dispatch.outliers.failed(self.replica.place, asyncio.get_running_loop().time())

    def over(self, output: int = 0) -> None:
        """It has ended, in whatever way, with that many tokens of an answer."""
        self._dispatch.router.over(self._sent, output)
        if self._expected is not None:
            self._expected.settle()
            self._expected = None
        self._dispatch.hold.look()
        self._end_trial()

    def _end_trial(self) -> None:
        if self._is_trial:
            self._is_trial = False
            self._dispatch.outliers.undecided(self.replica.place)
