"""Requests whose prompts one replica computes, and whose answers another one gives (`core/handover.py`)."""

from collections.abc import Sequence

import msgspec

from penstock.core.handover import HANDOVER, Offer, offer_in
from penstock.gateway.exchange import Head
from penstock.gateway.options import HandoverOptions
from penstock.gateway.replicas import Replica, Replicas
from penstock.routing.ask import Choice
from penstock.routing.handover import Side, TransferTimes, Verdict, compared, judge
from penstock.routing.keys import Keys
from penstock.routing.outliers import Outliers
from penstock.routing.router import Router

# What can be handed over: everything that generates.
PATHS = frozenset(("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"))


class Handing:
    """Decides which prompts are handed over.

    Args:
        takes_unlike: whether streams also go on at replicas that may give other bits.

    Attributes:
        times: how long that takes.
    """

    def __init__(
        self,
        options: HandoverOptions,
        replicas: Replicas,
        router: Router,
        outliers: Outliers,
        *,
        takes_unlike: bool = False,
    ) -> None:
        self._options, self._replicas, self._router, self._outliers = options, replicas, router, outliers
        self._takes_unlike = takes_unlike
        self.times = TransferTimes()

    def of_prompt(self, choice: Choice, model: str | None, tokens: int, keys: Sequence[Keys], now: float) -> Choice:
        """The replica that computes the prompt of a request that was to be sent to the one that was chosen.

        The request names a `model`, or none; the prompt has `tokens`, and blocks with these `keys`; `now` is of the
        outliers' clock. Where it stays, the reason says why, if there is another.
        """
        decodes = self._replicas.all[choice.replica]
        fitting = [each.place for each in self._replicas.prefilling if self._fits(each, decodes, model)]
        if not fitting:
            return choice
        # The prompt need not be computed elsewhere, so one that fails is not tried where no other one is left.
        out = self._outliers.out(now)
        good = [place for place in fitting if place not in out]
        if not good:
            return _stays(choice, "others have failed, and are left out")
        able = [place for place in good if self._router.loads.has_room(place)]
        if not able:
            return _stays(choice, "others have as many prompts as they take on")
        hits = self._router.hits(tokens, keys)
        found = {place: hits.get(place, 0) for place in able}
        best, here, there = compared(self._router.loads, self._router.speeds, choice, found, tokens)
        verdict = self._judge(here, there, tokens)
        if not verdict.hands_over:
            return _stays(choice, verdict.why)
        return Choice(best, f"handed over: {verdict.why}", hits.get(best, 0))

    def _fits(self, computes: Replica, decodes: Replica, model: str | None) -> bool:
        """Whether the one can go on with what the other has begun."""
        has_model = model in computes.models if model is not None else computes.models == decodes.models
        return has_model and self.takes(computes, decodes)

    def takes(self, computes: Replica, decodes: Replica) -> bool:
        """Whether a replica may get the blocks that another one has computed."""
        if computes.told is None or decodes.told is None or decodes.told.role != "decode":
            return False
        # An empty one says that its bits are not the same again, so that no stream goes on with them.
        identity = decodes.told.identity
        is_alike = computes.told.identity == identity != ""
        # The same form is the same secret, weights and blocks; until an engine runs, there is none.
        return computes.told.form == decodes.told.form != "" and (is_alike or self._takes_unlike)

    def _judge(self, here: Side, there: Side, tokens: int) -> Verdict:
        least = self._options.least_tokens
        if self._options.when == "always" and here.tokens >= least:
            return Verdict(True, "prompts of this length always are")
        return judge(here, there, self.times.expected(tokens), least)


def _stays(choice: Choice, why: str) -> Choice:
    return msgspec.structs.replace(choice, reason=f"{choice.reason}; its prompt stays there: {why}")


def offer_of(head: Head) -> Offer | None:
    """What a replica offers that has computed a prompt and answers with nothing else; None for any other answer."""
    value = next((value for name, value in head.headers if name == HANDOVER), None)
    return None if value is None else offer_in(value)
