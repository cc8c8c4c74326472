"""How many tokens are drafted for each sequence, and how, so that a second of the machine's time gives more tokens.

A draft of depth K whose tokens are each right with probability a is worth (1 - a^(K+1)) / (1 - a) tokens a step
(Leviathan et al., "Fast inference from transformers via speculative decoding", ICML 2023, equation 1), takes time to be
made, and makes the step longer. All three are measured: a for each sequence, from its own drafts and in the beginning
from those of all sequences; the time of drafting; and the time of a step by its number of tokens. Where drafts cost
more than they bring, as in a large batch, there are none.

Tokens in other branches of a tree are worth something where the likeliest is wrong: the j-th of them a^(j-1) (1 - a) b
tokens a step, for which b is measured. This holds for tokens that each stand beside a token of the likeliest branch,
where b is the probability that the one beside a wrong token is right. It also holds for tokens that continue the one
beside the first.

Where a sequence's own text drafts beside a model, there are two sources: the text alone, which costs next to nothing
but does not always say something, and both together. Each has its own figures, and what pays best is taken.
"""

import math
from collections import Counter
from collections.abc import Sequence as Rows
from typing import NamedTuple

from penstock.core.config import SchedulerConfig
from penstock.core.facts import Drafted
from penstock.core.plan import SampleResult, StepPlan, StepResult
from penstock.core.speculation import MOST_BRANCHES
from penstock.scheduler.costs import StepCosts
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.sources import Source

# A draft whose chance to be right is below one of these is not made; the best of them is looked for.
CHANCES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.12, 0.06)
FALLS = tuple((chance, math.log(chance)) for chance in CHANCES)
# The one for steps before any was measured: most sequences get a draft.
FIRST_CHANCE = 0.5
# Sequences are taken to be alike where the rates at which their drafts are right are the same to 1 / `ALIKE`.
ALIKE = 50
# The best draft is looked for anew after `STEPS` steps, or where the number of sequences has changed by the factor
# `CHANGED`: what pays for the last two of a batch does not for the next thirty. Where no draft pays, this number of
# steps grows by up to `MOST_IDLE` times `STEPS`.
STEPS = 8
CHANGED = 1.25
MOST_IDLE = 7
# Every fourth step without drafts is measured; many of these steps are alike.
MEASURED = 4
# The speed that drafts have to promise, as a multiple of that without them: the best of several estimates is too high.
WORTHWHILE = 1.04
# Drafts that promise this multiple are tried as they are; others with a token or two.
NEARLY = 0.75
# The chances that are assumed before anything was judged, and the least and largest ones.
HOPE = 0.6
HOPE_BESIDE = 0.3
HOPE_THERE = 1.0
HOPELESS, CERTAIN = 0.001, 0.99


class Tree(NamedTuple):
    """How many tokens are drafted: one behind the other, and beside these in other branches."""

    depth: int
    width: int = 0

    def within(self, depth: int, tokens: int) -> "Tree":
        """The same, no deeper, and of no more tokens in all."""
        depth = max(0, min(self.depth, depth, tokens))
        return Tree(depth, min(self.width, tokens - depth) if depth else 0)


NO_DRAFTS = Tree(0)
# What is tried in turn for one of the sequences: a token less, a token more, or two beside.
TRIALS = (Tree(-1), Tree(1), Tree(0, 2))


def _within_branches(trees: dict[int, Tree]) -> dict[int, Tree]:
    """The same with no more tokens beside the likeliest branches than a step can have branches."""
    left = MOST_BRANCHES
    for sequence, tree in trees.items():
        if tree.width > left:
            trees[sequence] = Tree(tree.depth, left)
        left -= trees[sequence].width
    return trees


class _Rates(NamedTuple):
    """How often a sequence's likeliest tokens are right, others where these are wrong, and there are any."""

    likeliest: float
    beside: float
    there: float

    def within_reason(self) -> "_Rates":
        """The same, but nothing is hopeless or certain."""
        return _Rates(min(max(self.likeliest, HOPELESS), CERTAIN), min(self.beside, CERTAIN), self.there)

    def rounded(self) -> "_Rates":
        """What sequences have in common whose drafts are right about as often."""
        return _Rates(*(round(ALIKE * rate) / ALIKE for rate in self)).within_reason()

    def gained(self, depth: int, width: int, kept: float) -> float:
        """Tokens that such drafts bring, where the part `kept` of the right ones that are expected comes true."""
        rate = self.likeliest
        return self.there * (kept * rate * (1 - rate**depth) / (1 - rate) + self.beside * (1 - rate**width))


class Depths:
    """Decides for the decoding sequences of a step.

    Attributes:
        text_only: whether only what the text says is to be drafted, of what was chosen last.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._most = config.draft_depth
        self._widest = config.draft_width
        self._fixed = config.fixed_depth
        # Costs of steps, and of those with other branches.
        self._costs, self._wide_costs = StepCosts(), StepCosts()
        # By whether the text alone is asked. It comes first, since it costs nothing to try.
        sources = (True,) * config.text_drafts + (False,) * config.model_drafts
        self._sources = {text_only: Source() for text_only in sources}
        self.text_only = config.text_drafts and not config.model_drafts
        # What below that chance is not drafted.
        self._chance: float | None = None
        self._trial: tuple[int, Tree] | None = None
        self._steps = self._trials = 0
        self._facts: list[Drafted] = []
        # Steps until it is looked for anew, and for how many sequences it was.
        self._left = self._decided = self._idle = 0
        # When the newest step began, how long it took, and what of that is to be kept once it is known what passed
        # behind it.
        self._began = self._computed = 0.0
        self._newest: tuple[StepCosts, int, float] | None = None

    def begin(self, now: float) -> None:
        """A step begins. What passed since the one before is part of that one, unless nothing was to be done."""
        between = now - self._began - self._computed
        if 0 <= between < self._computed:
            self._keep(between)
        self._newest, self._began = None, now

    def choose(self, sequences: Rows[Sequence]) -> dict[int, Tree]:
        """How many tokens may be drafted for those of the sequences that decode for which it pays, by their ids."""
        if self._fixed:
            return _within_branches({sequence.id: Tree(self._most, self._widest) for sequence in sequences})
        if not sequences or not self._most:
            return {}
        count = len(sequences)
        if not self._left or not self._decided / CHANGED <= count <= self._decided * CHANGED:
            self._decide(sequences)
        self._left -= 1
        self._steps += 1
        chosen = {}
        if self._chance is not None:
            chosen = self._trees(sequences, self._chance)
        if self._trial is not None:
            sequence, more = self._trial
            if any(each.id == sequence for each in sequences):
                depth, width = chosen.get(sequence, NO_DRAFTS)
                most = min(self._most, max(1, depth + more.depth))
                chosen[sequence] = Tree(most, min(self._widest, width + more.width))
        return _within_branches(chosen) if chosen else chosen

    def judged(self, sequence: Sequence, answer: SampleResult | None, *, text_only: bool = False) -> int:
        """A sequence's drafts, if there were any, were verified; how many of them were right."""
        if answer is None or not answer.gained.tokens:
            return 0
        source, record = self._sources[text_only], sequence.record(text_only)
        for each in (record, source.common):
            each.there.add(bool(answer.drafted), 1)
        if not answer.drafted:
            return 0
        right, strayed = len(answer.gained.tokens) - 1, answer.strayed
        request, sample = sequence.request.request_id, sequence.sample_index
        fact = Drafted(request, sample, answer.drafted, right, answer.beside, strayed)
        self._facts.append(fact)
        if self._fixed:
            return right
        followed = right - strayed
        judged = min(followed + 1, fact.depth)
        (rates,) = self._rates([sequence], text_only)
        rate = rates.likeliest
        source.kept.add(followed, rate * (1 - rate**fact.depth) / (1 - rate))
        hoped = 1 - rate**fact.beside
        for each in (record, source.common):
            if fact.beside:
                each.beside.add(strayed, hoped)
            each.likeliest.add(followed, judged)
        return right

    def measured(self, plan: StepPlan, result: StepResult) -> list[Drafted]:
        """A step whose drafts were all judged took `result.seconds`; returns what became of them."""
        facts, self._facts = self._facts, []
        self._keep(0.0)
        self._computed = result.seconds
        if not self._most or self._fixed or plan.num_tokens != len(plan.rows):
            return facts
        if asked := sum(row.draft_depth for row in plan.rows):
            source = self._sources[any(row.text_only for row in plan.rows)]
            wide = any(row.draft_width for row in plan.rows)
            (source.wide_drafting if wide else source.drafting).measured(asked, result.drafting_seconds)
            source.is_tried = True
        if asked or self._left % MEASURED == 0:
            tokens = plan.num_tokens + sum(fact.drafted for fact in facts)
            costs = self._wide_costs if any(fact.beside for fact in facts) else self._costs
            self._newest = costs, tokens, result.seconds - result.drafting_seconds
        return facts

    def _keep(self, between: float) -> None:
        """Keep what the newest step took, with what passed behind it."""
        if self._newest is not None:
            costs, tokens, seconds = self._newest
            costs.measured(tokens, seconds + between)
        self._newest = None

    def _decide(self, sequences: Rows[Sequence]) -> None:
        """Look anew for what pays, and whether it is time to try something else."""
        promises = {text_only: self._promise(sequences, text_only) for text_only in self._sources}
        self.text_only = max(promises, key=lambda text_only: promises[text_only])
        speed, chance = promises[self.text_only]
        self._chance = chance if speed > WORTHWHILE else None
        self._trial = None
        due = [text_only for text_only, source in self._sources.items() if source.due <= self._steps]
        if due:
            text_only = min(due, key=lambda text_only: self._sources[text_only].due)
            # The text costs nothing to try where nothing is drafted; instead of what is, it does.
            costs = not text_only if self._chance is None else text_only != self.text_only
            self._sources[text_only].tried(self._steps, rarely=costs)
            self._trials += 1
            self._try_something(sequences, text_only, *promises[text_only])
        drafting = self._chance is not None or self._trial is not None
        self._idle = 0 if drafting else min(2 * self._idle + 1, MOST_IDLE)
        self._left, self._decided = STEPS * (1 + self._idle), len(sequences)

    def _try_something(self, sequences: Rows[Sequence], text_only: bool, speed: float, chance: float) -> None:
        """What is not known to pay: all of a source's drafts that nearly do, or a token or two more or less."""
        if (self._chance is None or text_only != self.text_only) and speed > NEARLY:
            self.text_only, self._chance = text_only, chance
            return
        if text_only != self.text_only:
            self.text_only, self._chance = text_only, None
        self._trial = self._other(sequences)

    def _trees(self, sequences: Rows[Sequence], chance: float) -> dict[int, Tree]:
        """What is drafted for each: the tokens that are right with that `chance` or a greater one."""
        found, fall = {}, math.log(chance)
        for sequence, rates in zip(sequences, self._rates(sequences, self.text_only), strict=True):
            if (tree := self._likely(rates, fall)).depth:
                found[sequence.id] = tree
        return found

    def _likely(self, rates: _Rates, fall: float) -> Tree:
        """The tokens that are right with a chance whose logarithm is `fall`, or with a greater one."""
        step = math.log(rates.likeliest)
        depth, width = min(self._most, int(fall / step)), 0
        first = (1 - rates.likeliest) * rates.beside
        if depth and self._widest and first > 0 and (further := (fall - math.log(first)) / step) >= 0:
            width = min(self._widest, 1 + int(further))
        return Tree(depth, width)

    def _rates(self, sequences: Rows[Sequence], text_only: bool) -> list[_Rates]:
        common = self._sources[text_only].common
        likeliest, beside, there = common.rates(HOPE, HOPE_BESIDE, HOPE_THERE)
        return [
            _Rates(*sequence.record(text_only).rates(likeliest, beside, there)).within_reason()
            for sequence in sequences
        ]

    def _promise(self, sequences: Rows[Sequence], text_only: bool) -> tuple[float, float]:
        """How many times as fast as without drafts a source's promise to make it, and the chance below which not to.

        Where that is not known, no other may be tried before it.
        """
        count, source = len(sequences), self._sources[text_only]
        if not self._costs.of(count) or not source.is_tried:
            return math.inf, FIRST_CHANCE
        alike = Counter(rates.rounded() for rates in self._rates(sequences, text_only))
        plain, kept = self._speed(source, count, NO_DRAFTS, 0.0, 0.0), source.kept.rate(1.0)
        best = (0.0, CHANCES[0])
        for chance, fall in FALLS:
            depths = widths = 0
            drafted = gained = 0.0
            for rates, share in alike.items():
                depth, width = self._likely(rates, fall)
                if depth:
                    depths, widths = depths + share * depth, widths + share * width
                    drafted += share * rates.there * (depth + width)
                    gained += share * rates.gained(depth, width, kept)
            if not depths:
                continue
            speed = self._speed(source, count, Tree(depths, widths), drafted, gained) / plain
            # The lowest of equal ones: there drafts could not be deeper.
            if speed >= best[0]:
                best = (speed, chance)
        return best

    def _other(self, sequences: Rows[Sequence]) -> tuple[int, Tree]:
        """A sequence that is drafted for otherwise, and by how much."""
        kinds = TRIALS if self._widest else TRIALS[:2]
        turn = self._trials // len(self._sources)
        return sequences[turn // len(kinds) % len(sequences)].id, kinds[turn % len(kinds)]

    def _speed(self, source: Source, rows: int, asked: Tree, drafted: float, gained: float) -> float:
        """Tokens a second of `rows` rows, where the tree `asked` is the sum of theirs.

        `drafted` and `gained` are the tokens that are then drafted and right, all rows together.
        """
        tokens = rows + drafted
        seconds = self._costs.of(tokens)
        drafting = source.drafting.of(asked.depth) if asked.depth else 0.0
        if asked.width:
            # What is not known of wide steps is no less than what is known of others.
            seconds = max(seconds, self._wide_costs.of(tokens))
            drafting = max(drafting, source.wide_drafting.of(asked.depth))
        return (rows + gained) / (seconds + drafting)
