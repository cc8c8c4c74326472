"""How many tokens are drafted for each sequence, so that more come of a second of the machine's time.

A draft of depth K, each token of which is right with probability a, is worth (1 - a^(K+1)) / (1 - a) tokens a step
(Leviathan et al., "Fast inference from transformers via speculative decoding", ICML 2023, equation 1), takes time to be
made, and makes the step longer. All three are measured: a for each sequence, from its own drafts and in the beginning
from everybody's; what drafting costs, and a step by how many tokens are in it. Where drafts cost more than they bring,
as in a large batch, there are none.
"""

import math
from collections.abc import Sequence as Rows

from penstock.core.facts import Drafted
from penstock.core.plan import SampleResult, StepPlan, StepResult
from penstock.scheduler.acceptance import Acceptance
from penstock.scheduler.costs import StepCosts
from penstock.scheduler.sequence import Sequence

# A draft whose chance to be right is below one of these is not made; the best of them is looked for.
CHANCES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.12, 0.06)
# Depths are chosen anew after so many steps, or where the batch has changed.
STEPS = 8
# In one of so many choices, one of the sequences for which nothing would be drafted gets a token all the same: that may
# have become worth its while.
PATIENCE = 8
# The chance that is assumed before anything was judged, and the largest one.
HOPE = 0.6
CERTAIN = 0.99


class Depths:
    """Decides for the decoding sequences of a step."""

    def __init__(self, most: int, *, fixed: bool) -> None:
        """`most` tokens are drafted at a time, or, where that is `fixed`, as many always; 0: none ever are."""
        self._most = most
        self._fixed = fixed
        self._costs = StepCosts()
        # Of drafting a token for each of so many sequences.
        self._drafting = StepCosts()
        self._common = Acceptance()
        self._chosen: dict[int, int] = {}
        self._facts: list[Drafted] = []
        self._steps = self._rounds = 0

    def choose(self, sequences: Rows[Sequence]) -> dict[int, int]:
        """How many tokens may be drafted for each of the sequences that decode, by their ids."""
        if self._fixed or not self._most:
            return dict.fromkeys((sequence.id for sequence in sequences), self._most)
        self._steps += 1
        if self._steps % STEPS == 0 or self._chosen.keys() != {sequence.id for sequence in sequences}:
            self._chosen = self._best(sequences)
        return self._chosen

    def judged(self, sequence: Sequence, answer: SampleResult | None) -> int:
        """A sequence's drafts, if there were any, were verified; how many of them were right."""
        if answer is None or not answer.drafted or not answer.tokens:
            return 0
        right = len(answer.tokens) - 1
        fact = Drafted(sequence.request.request_id, sequence.sample_index, answer.drafted, right)
        self._facts.append(fact)
        sequence.acceptance.add(right, fact.judged)
        self._common.add(right, fact.judged)
        return right

    def measured(self, plan: StepPlan, result: StepResult) -> list[Drafted]:
        """A step whose drafts were all judged took so long; what became of them."""
        facts, self._facts = self._facts, []
        if self._most and not self._fixed and plan.num_tokens == len(plan.rows):
            tokens = plan.num_tokens + sum(fact.drafted for fact in facts)
            self._costs.measured(tokens, result.seconds - result.drafting_seconds)
            depths = [row.draft_depth for row in plan.rows if row.draft_depth]
            if depths:
                self._drafting.measured(len(depths), result.drafting_seconds / max(depths))
        return facts

    def _best(self, sequences: Rows[Sequence]) -> dict[int, int]:
        common = self._common.rate(HOPE)
        rates = [min(sequence.acceptance.rate(common), CERTAIN) for sequence in sequences]
        logs = [math.log(rate) if rate > 0 else -math.inf for rate in rates]
        depths = [0] * len(rates)
        best = self._speed(depths, float(len(rates)))
        for chance in CHANCES:
            tried = [min(self._most, int(math.log(chance) / each)) for each in logs]
            gained = sum((1 - rate ** (depth + 1)) / (1 - rate) for rate, depth in zip(rates, tried, strict=True))
            speed = self._speed(tried, gained)
            if speed > best:
                best, depths = speed, tried
        self._rounds += 1
        turn = self._rounds // PATIENCE % max(1, len(depths))
        if self._rounds % PATIENCE == 0 and depths and not depths[turn]:
            depths[turn] = 1
        return {sequence.id: depth for sequence, depth in zip(sequences, depths, strict=True)}

    def _speed(self, depths: Rows[int], gained: float) -> float:
        """Tokens a second where drafts have these depths, and so many tokens are gained."""
        seconds = self._costs.of(len(depths) + sum(depths))
        if not seconds:
            return gained
        for depth in range(max(depths, default=0)):
            seconds += self._drafting.of(sum(each > depth for each in depths))
        return gained / seconds
