"""How many tokens are drafted for each sequence, and how, so that more come of a second of the machine's time.

A draft of depth K, each token of which is right with probability a, is worth (1 - a^(K+1)) / (1 - a) tokens a step
(Leviathan et al., "Fast inference from transformers via speculative decoding", ICML 2023, equation 1), takes time to be
made, and makes the step longer. All three are measured: a for each sequence, from its own drafts and in the beginning
from everybody's; what drafting costs, and a step by how many tokens are in it. Where drafts cost more than they bring,
as in a large batch, there are none.

Tokens in other branches of a tree are worth something where the likeliest is wrong: the j-th of them a^(j-1) (1 - a) b
tokens a step, for which b is measured. That is what it adds where each stands beside a token of the likeliest branch,
one of which is right with probability b where that is wrong, and where they continue one that stands beside the first.
"""

import math
from collections.abc import Sequence as Rows
from typing import NamedTuple

from penstock.core.acceptance import Acceptance
from penstock.core.facts import Drafted
from penstock.core.plan import SampleResult, StepPlan, StepResult
from penstock.core.speculation import MOST_BRANCHES
from penstock.scheduler.costs import NEWEST, StepCosts
from penstock.scheduler.sequence import Sequence

# A draft whose chance to be right is below one of these is not made; the best of them is looked for.
CHANCES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.12, 0.06)
# What pays is looked for anew after so many steps.
STEPS = 8
# In one of so many choices, one of the sequences is drafted for a token more than seems best, or a token less, or two
# beside it: what is not tried is not known, and may have become worth its while.
PATIENCE = 8
MOST_PATIENCE = 64
# The chances that are assumed before anything was judged, and the largest one.
HOPE = 0.6
HOPE_BESIDE = 0.3
CERTAIN = 0.99


class Tree(NamedTuple):
    """How many tokens are drafted: one behind the other, and beside these in other branches."""

    depth: int
    width: int = 0

    def within(self, depth: int, tokens: int) -> "Tree":
        """The same, no deeper, and of no more tokens in all."""
        depth = max(0, min(self.depth, depth, tokens))
        return Tree(depth, min(self.width, tokens - depth) if depth else 0)


NO_DRAFTS = Tree(0)
# What is tried in turn.
TRIALS = (Tree(-1), Tree(1), Tree(0, 2))


def _within_branches(trees: dict[int, Tree]) -> dict[int, Tree]:
    """The same with no more tokens beside the likeliest branches than a step can have branches."""
    left = MOST_BRANCHES
    for sequence, tree in trees.items():
        if tree.width > left:
            trees[sequence] = Tree(tree.depth, left)
        left -= trees[sequence].width
    return trees


class Depths:
    """Decides for the decoding sequences of a step."""

    def __init__(self, most: int, widest: int = 0, *, fixed: bool) -> None:
        """`most` tokens are drafted at a time, one behind the other, and `widest` more beside them.

        Where that is `fixed`, as many always are; 0: none ever are.
        """
        self._most = most
        self._widest = widest
        self._fixed = fixed
        self._costs = StepCosts()
        # Of drafting so many tokens for all sequences together, with what a draft model makes up for now and then; and
        # both where there are other branches, whose second choices and blocks cost something too.
        self._drafting = StepCosts(even=False)
        self._wide_costs, self._wide_drafting = StepCosts(), StepCosts(even=False)
        self._common = Acceptance()
        self._beside = Acceptance()
        self._chance: float | None = None
        self._trial: tuple[int, Tree] | None = None
        self._trials, self._patience = 0, PATIENCE
        self._facts: list[Drafted] = []
        self._steps = self._rounds = 0
        # What passes from step to step outside of their computation, and when the newest began, and how long it took.
        self._between = 0.0
        self._began = self._computed = 0.0

    def begin(self, now: float) -> None:
        """A step begins. Where nothing was to be done before it, what passed says nothing."""
        between = now - self._began - self._computed
        if 0 < between < self._computed:
            self._between += NEWEST * (between - self._between)
        self._began = now

    def choose(self, sequences: Rows[Sequence]) -> dict[int, Tree]:
        """How many tokens may be drafted for each of the sequences that decode, by their ids."""
        if self._fixed or not self._most:
            return _within_branches({sequence.id: Tree(self._most, self._widest) for sequence in sequences})
        if not sequences:
            return {}
        if self._steps % STEPS == 0:
            self._chance = self._best(sequences)
            self._trial = self._next_trial(sequences)
        self._steps += 1
        chosen = {sequence.id: self._tree(sequence) for sequence in sequences}
        if self._trial is not None and self._trial[0] in chosen:
            sequence, more = self._trial
            depth, width = chosen[sequence]
            chosen[sequence] = Tree(min(self._most, max(1, depth + more.depth)), min(self._widest, width + more.width))
        return _within_branches(chosen)

    def judged(self, sequence: Sequence, answer: SampleResult | None) -> int:
        """A sequence's drafts, if there were any, were verified; how many of them were right."""
        if answer is None or not answer.drafted or not answer.tokens:
            return 0
        right, strayed = len(answer.tokens) - 1, answer.strayed
        request, sample = sequence.request.request_id, sequence.sample_index
        fact = Drafted(request, sample, answer.drafted, right, answer.beside, strayed)
        self._facts.append(fact)
        followed = right - strayed
        judged = min(followed + 1, fact.depth)
        if fact.beside:
            rate = self._rate(sequence, self._common.rate(HOPE))
            hoped = 1 - rate**fact.beside
            sequence.beside.add(strayed, hoped)
            self._beside.add(strayed, hoped)
        sequence.acceptance.add(followed, judged)
        self._common.add(followed, judged)
        return right

    def measured(self, plan: StepPlan, result: StepResult) -> list[Drafted]:
        """A step whose drafts were all judged took so long; what became of them."""
        facts, self._facts = self._facts, []
        self._computed = result.seconds
        if self._most and not self._fixed and plan.num_tokens == len(plan.rows):
            tokens = plan.num_tokens + sum(fact.drafted for fact in facts)
            wide = any(fact.beside for fact in facts)
            costs = self._wide_costs if wide else self._costs
            costs.measured(tokens, result.seconds - result.drafting_seconds)
            depths = [row.draft_depth for row in plan.rows if row.draft_depth]
            if depths:
                drafting = self._wide_drafting if any(row.draft_width for row in plan.rows) else self._drafting
                drafting.measured(sum(depths), result.drafting_seconds)
        return facts

    def _tree(self, sequence: Sequence) -> Tree:
        if self._chance is None:
            return NO_DRAFTS
        rate = self._rate(sequence, self._common.rate(HOPE))
        return self._likely(rate, self._rate_beside(sequence, self._beside.rate(HOPE_BESIDE)), self._chance)

    def _likely(self, rate: float, beside: float, chance: float) -> Tree:
        """The tokens that are right with that `chance` or a greater one."""
        if rate <= 0:
            return NO_DRAFTS
        depth, width = min(self._most, int(math.log(chance) / math.log(rate))), 0
        first = (1 - rate) * beside
        if depth and self._widest and first >= chance:
            width = min(self._widest, 1 + int(math.log(chance / first) / math.log(rate)))
        return Tree(depth, width)

    @staticmethod
    def _rate(sequence: Sequence, common: float) -> float:
        return min(sequence.acceptance.rate(common), CERTAIN)

    @staticmethod
    def _rate_beside(sequence: Sequence, common: float) -> float:
        return min(sequence.beside.rate(common), CERTAIN)

    def _best(self, sequences: Rows[Sequence]) -> float | None:
        """The chance below which it pays best not to draft; None where it pays not to draft at all."""
        common, beside = self._common.rate(HOPE), self._beside.rate(HOPE_BESIDE)
        rates = [(self._rate(sequence, common), self._rate_beside(sequence, beside)) for sequence in sequences]
        found, best = None, self._speed(len(rates), 0, 0, float(len(rates)))
        for chance in CHANCES:
            depths = widths = 0
            gained = 0.0
            for rate, other in rates:
                depth, width = self._likely(rate, other, chance)
                gained += (1 - rate ** (depth + 1)) / (1 - rate) + other * (1 - rate**width)
                depths += depth
                widths += width
            speed = self._speed(len(rates), depths, widths, gained)
            # Of equals the lowest: there drafts could not be deeper.
            if speed > best or (found is not None and speed == best):
                found, best = chance, speed
        return found

    def _next_trial(self, sequences: Rows[Sequence]) -> tuple[int, Tree] | None:
        """A sequence that is drafted for otherwise, and by how much; None where it is time for none."""
        self._rounds += 1
        if self._rounds < self._patience or not sequences:
            return None
        self._rounds = 0
        self._trials += 1
        # Where nothing is drafted for long, it is tried ever less.
        self._patience = PATIENCE if self._chance is not None else min(2 * self._patience, MOST_PATIENCE)
        kinds = TRIALS if self._widest else TRIALS[:2]
        turn, more = self._trials // len(kinds) % len(sequences), kinds[self._trials % len(kinds)]
        return sequences[turn].id, more

    def _speed(self, rows: int, depths: int, widths: int, gained: float) -> float:
        """Tokens a second where so many are drafted for all rows together, and so many are gained."""
        seconds = self._costs.of(rows + depths + widths)
        drafting = self._drafting.of(depths) if depths else 0.0
        if widths:
            # What is not known of wide steps is no less than what is known of others.
            seconds = max(seconds, self._wide_costs.of(rows + depths + widths))
            drafting = max(drafting, self._wide_drafting.of(depths))
        if not seconds:
            return gained
        return gained / (self._between + seconds + drafting)
