"""An EAGLE head is given each token once, with the model's state before it, wherever that is known."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.core.kv import GroupSpec, LayerKV, build_kv_spec
from penstock.core.plan import RowPlan
from penstock.kernels.batch import StepBatch
from penstock.runtime.storage import KVStorage
from penstock.speculation.eagle import LAG, EagleProposer
from penstock.speculation.proposer import Learner, Proposal, Wanted
from penstock.stepping.tables import BlockTables
from support.sampling_rows import make_row


def state_of(sequence: int, position: int) -> float:
    return float(1000 * sequence + position)


class Recording:
    """Takes down what it is given at each position of each row of the block tables."""

    def __init__(self) -> None:
        self.given: dict[tuple[int, int], tuple[int, float]] = {}
        self.batches: list[StepBatch] = []

    def results(self, batch: StepBatch, *given: Tensor) -> tuple[Tensor, ...]:
        (states,) = given
        self.batches.append(batch)
        place = 0
        for row, (count, context) in enumerate(zip(batch.query_lengths, batch.context_lengths, strict=True)):
            table = int(batch.block_tables[0][row, 0])
            for position in range(context - count, context):
                assert int(batch.positions[place]) == position
                self.given[table, position] = int(batch.token_ids[place]), float(states[place, 0])
                place += 1
        return (torch.zeros(len(batch.logit_rows), 4), states)

    def decode(
        self, batch: StepBatch, tokens: Sequence[int], widths: Sequence[int], choices: Sequence[Any], *given: Tensor
    ) -> list[Proposal]:
        """Drafts are the row's last token, and those that follow it."""
        self.results(batch, *given)
        ends = torch.tensor(batch.query_lengths).cumsum(0) - 1
        return [
            Proposal([int(batch.token_ids[end]) + 1 + step for step in range(count)])
            for end, count in zip(ends, tokens, strict=True)
        ]


class Driver:
    """A target model beside an EAGLE head: sequences whose tokens are numbers, drafted for now and then."""

    def __init__(self) -> None:
        self.head, self.tables = Recording(), BlockTables((GroupSpec((0,)),), 16)
        spec = build_kv_spec([LayerKV(1, 8)], "bfloat16", 16)
        self.eagle = EagleProposer(self.head, self.head.decode, self.tables, (0,), KVStorage(spec, 4))
        self.tokens: dict[int, list[int]] = {}
        self.table: dict[int, int] = {}
        self.computed: dict[int, int] = {}

    def begin(self, sequence: int, prompt: list[int], cached: int = 0) -> None:
        self.tokens[sequence], self.table[sequence] = list(prompt), self.tables.open_row()
        self.tables._tables[0][self.table[sequence]] = sequence
        self.computed[sequence] = cached
        self.eagle.begin(sequence, self.tokens[sequence])

    def step(self, sequence: int, count: int, depth: int, right: int, luck: random.Random) -> None:
        """Compute `count` tokens, or one with drafts of which so many are right."""
        known, start = self.tokens[sequence], self.computed[sequence]
        last = start + count >= len(known)
        row = RowPlan(sequence, start, count, known[start : start + count], None, (sequence,) if last else (), ())
        self.eagle.follow([(row, self.table[sequence])])
        drafts: list[int] = []
        if depth:
            state = make_row(sequence, temperature=0.0)
            (proposal,) = self.eagle.propose([Wanted(sequence, depth, state, self.table[sequence])])
            drafts = proposal.tokens
            if drafts:
                assert drafts[0] == known[-1] + 1, "the newest token is the last that is given"
        positions = range(start, start + count + len(drafts))
        seen = torch.tensor([[state_of(sequence, position)] for position in positions])
        self.eagle.see(sequence, start, seen)
        self.computed[sequence] = start + count
        if last:
            gained = drafts[: min(right, len(drafts))]
            new = [*gained, luck.randrange(5000, 9000)]
            self.computed[sequence] += len(gained)
            known += new
            self.eagle.observe(sequence, len(new))

    def check(self, since: dict[int, int]) -> None:
        """What was given at each position is the token behind it and the state at it, from where it began."""
        for sequence, tokens in self.tokens.items():
            given = [position for (table, position) in self.head.given if table == sequence]
            for position in given:
                if position >= since[sequence]:
                    token, state = self.head.given[sequence, position]
                    assert state == state_of(sequence, position)
                    assert token == tokens[position + 1]


def test_it_learns_from_all_states() -> None:
    assert isinstance(Driver().eagle, Learner) and Driver().eagle.states == "all"


@pytest.mark.parametrize("seed", range(20))
def test_each_token_comes_with_the_state_before_it(seed: int) -> None:
    luck, driver = random.Random(seed), Driver()
    since = {}
    for sequence in range(3):
        prompt = [luck.randrange(100, 4000) for _ in range(luck.randint(1, 3 * LAG))]
        since[sequence] = luck.choice([0, 0, luck.randrange(len(prompt))])
        driver.begin(sequence, prompt, since[sequence])
    for _ in range(120):
        sequence = luck.randrange(3)
        left = len(driver.tokens[sequence]) - driver.computed[sequence]
        if luck.random() < 0.02:
            # It was preempted, and is computed anew.
            driver.computed[sequence] = 0
            since[sequence] = 0
        elif left > 1:
            driver.step(sequence, luck.randint(1, left), 0, 0, luck)
        else:
            driver.step(sequence, 1, luck.choice([0, 0, 1, 3]), luck.randint(0, 3), luck)
        driver.check(since)
    # Whoever is not drafted for is not forgotten.
    for sequence, computed in driver.computed.items():
        if not computed:
            continue
        waits_from = driver.eagle._tracks[sequence].first
        assert computed - waits_from <= LAG
        assert all((sequence, position) in driver.head.given for position in range(since[sequence], waits_from))


def test_nothing_is_drafted_where_nothing_was_seen() -> None:
    driver = Driver()
    driver.begin(0, [1, 2, 3])
    wanted = Wanted(0, 2, make_row(0, temperature=0.0), driver.table[0])
    assert driver.eagle.propose([wanted]) == [Proposal([])]
    driver.eagle.forget(0)
    driver.eagle.forget(0)
    driver.eagle.see(0, 0, torch.zeros(1, 1))


def test_a_sample_of_the_same_prompt_begins_with_its_last_state() -> None:
    driver = Driver()
    driver.begin(0, [1, 2, 3])
    driver.eagle.see(0, 2, torch.tensor([[state_of(0, 2)]]))
    driver.tokens[0].append(9)
    driver.eagle.observe(0, 1)
    wanted = Wanted(0, 2, make_row(0, temperature=0.0), driver.table[0])
    assert driver.eagle.propose([wanted]) == [Proposal([10, 11])]
    assert driver.head.given == {(0, 2): (9, state_of(0, 2))}
