"""Which prompts of a simulated fleet other replicas compute than decode them, by the rule that gateways have."""

from collections.abc import Sequence

from penstock.routing.ask import Choice
from penstock.routing.handover import TransferTimes, compared, judge
from penstock.routing.keys import Keys
from penstock.routing.router import Router

# As a gateway has it: shorter prompts stay.
_LEAST_TOKENS = 256


class Roles:
    """The places of replicas that compute prompts, and of those that decode.

    Attributes:
        decodes: places of those that a request is sent to at first.
        handed_over, stayed: prompts that others computed, and that were computed where they were decoded.
        times: what handing over takes, which is measured.
    """

    def __init__(self, prefills: Sequence[int], decodes: Sequence[int]) -> None:
        self._prefills, self.decodes = tuple(prefills), tuple(decodes)
        self.times = TransferTimes()
        self.handed_over = self.stayed = 0

    def elsewhere(self, router: Router, choice: Choice, tokens: int, keys: Keys) -> Choice | None:
        """The replica that computes a prompt which was sent to the one that was chosen; None: that one does."""
        hits = router.hits(tokens, keys)
        able = {place: hits.get(place, 0) for place in self._prefills}
        best, here, there = compared(router.loads, router.speeds, choice, able, tokens)
        verdict = judge(here, there, self.times.expected(tokens), _LEAST_TOKENS)
        self.handed_over += verdict.hands_over
        self.stayed += not verdict.hands_over
        return Choice(best, verdict.why, able[best]) if verdict.hands_over else None
