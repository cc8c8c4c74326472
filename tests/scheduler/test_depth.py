"""How deep drafts are follows from what steps cost and how often drafts are right."""

import random

import pytest

from penstock.core.config import SchedulerConfig
from penstock.core.plan import Gained, RowPlan, SampleResult, StepPlan, StepResult
from penstock.scheduler.costs import FORGOTTEN, SIZES, StepCosts
from penstock.scheduler.depth import NO_DRAFTS, Depths, Tree
from penstock.scheduler.sequence import Sequence
from support.simulation import Simulation, config, make_request, prompt


def depth_of(depth: int, width: int = 0, *, fixed_depth: bool = False, text_drafts: bool = False) -> SchedulerConfig:
    return SchedulerConfig(
        draft_depth=depth, draft_width=width, fixed_depth=fixed_depth, text_drafts=text_drafts, model_drafts=True
    )


def sequences(count: int) -> list[Sequence]:
    simulation = Simulation(400, config=config(64, 512))
    simulation.submit(*(make_request(index, prompt(3, index), 50) for index in range(count)))
    return simulation.sequences()


def planned(running: list[Sequence], trees: dict[int, Tree]) -> StepPlan:
    """A step in which all decode."""
    rows = (RowPlan(each.id, 9, 1, [1], None, (each.id,), (), *trees.get(each.id, NO_DRAFTS)) for each in running)
    return StepPlan(0, tuple(rows))


def settled(
    chance: float, cost: dict[str, float], count: int = 1, steps: int = 1500, beside: float | None = None
) -> tuple[float, float]:
    """The mean depth and width in the last steps where each draft is right with a chance.

    Steps cost `fixed` and `each`. Where the likeliest draft is wrong, one `beside` it is right with that chance, if
    there is one; None: nobody drafts trees.
    """
    widest = 0 if beside is None else 8
    luck, depths, running, used = random.Random(0), Depths(depth_of(8, widest)), sequences(count), []
    for step in range(steps):
        chosen = depths.choose(running)
        tokens = count + sum(sum(tree) for tree in chosen.values())
        for sequence in running:
            depth, width = chosen.get(sequence.id, NO_DRAFTS)
            if depth:
                right = next((place for place in range(depth) if luck.random() >= chance), depth)
                strayed = int(right < min(depth, width) and luck.random() < (beside or 0.0))
                answer = SampleResult(
                    sequence.id,
                    Gained([0] * (right + strayed + 1)),
                    drafted=depth + width,
                    beside=width,
                    strayed=strayed,
                )
                assert depths.judged(sequence, answer) == right + strayed
        seconds = (cost["fixed"] + cost["each"] * tokens) * luck.uniform(0.95, 1.1)
        facts = depths.measured(planned(running, chosen), StepResult(step, (), seconds))
        assert len(facts) == sum(tree.depth > 0 for tree in chosen.values())
        if step >= steps // 2:
            used += (chosen.get(sequence.id, NO_DRAFTS) for sequence in running)
    return sum(tree.depth for tree in used) / len(used), sum(tree.width for tree in used) / len(used)


@pytest.mark.parametrize(
    ("chance", "each", "count", "least", "most"),
    [
        # Where tokens cost nothing beside the step, drafts are as deep as they may be.
        (0.95, 0.001, 1, 6.5, 8.0),
        # Where they are seldom right, or cost as much as other tokens, there are none but for a trial now and then.
        (0.02, 0.1, 1, 0.0, 0.3),
        (0.7, 10.0, 32, 0.0, 0.2),
        # The best depth at a chance of 0.7 and a tenth of a step for each token is 4, E / (1 + 0.1 (K + 1)); at 2 and
        # at 7 it is 5% less.
        (0.7, 0.1, 1, 2.0, 7.0),
        (0.7, 0.1, 32, 0.0, 2.0),
    ],
)
def test_the_depth_is_what_pays(chance: float, each: float, count: int, least: float, most: float) -> None:
    depth, width = settled(chance, {"fixed": 1.0, "each": each}, count)
    assert least <= depth <= most and width == 0


@pytest.mark.parametrize(
    ("chance", "beside", "each", "least", "most"),
    [
        # The j-th token beside the likeliest is worth 0.5^j 0.6, and one behind the likeliest 0.5^j.
        (0.5, 0.6, 0.03, 1.5, 5.0),
        # Where tokens cost more, or are seldom right there, or the likeliest mostly is.
        (0.5, 0.6, 0.6, 0.0, 0.7),
        (0.5, 0.0, 0.03, 0.0, 0.3),
        (0.97, 0.6, 0.03, 0.0, 0.7),
    ],
)
def test_the_width_is_what_pays(chance: float, beside: float, each: float, least: float, most: float) -> None:
    depth, width = settled(chance, {"fixed": 1.0, "each": each}, beside=beside)
    assert least <= width <= most and depth > 0


def test_a_tree_is_cut_to_what_there_is_room_for() -> None:
    tree = Tree(4, 6)
    assert tree.within(9, 20) == tree and tree.within(2, 20) == Tree(2, 6)
    assert tree.within(4, 7) == Tree(4, 3) and tree.within(4, 3) == Tree(3, 0)
    assert tree.within(0, 9) == tree.within(3, -1) == Tree(0)


def test_a_depth_that_is_asked_for_is_kept() -> None:
    running = sequences(3)
    depths = Depths(depth_of(4, fixed_depth=True))
    for _ in range(20):
        assert depths.choose(running) == {sequence.id: (4, 0) for sequence in running}
        for sequence in running:
            depths.judged(sequence, SampleResult(sequence.id, Gained([0]), drafted=4))
        depths.measured(planned(running, depths.choose(running)), StepResult(0, (), 100.0))
    assert Depths(depth_of(0)).choose(running) == {}
    assert set(Depths(depth_of(4, 3, fixed_depth=True)).choose(running).values()) == {(4, 3)}


def test_costs_are_straight_lines_between_what_was_measured() -> None:
    costs = StepCosts()
    assert costs.of(5) == 0.0
    costs.measured(2, 0.0)
    assert costs.of(5) == 0.0
    costs.measured(4, 1.0)
    assert costs.of(6) == 1.25
    costs.measured(8, 2.0)
    assert [costs.of(tokens) for tokens in (1, 4, 6, 8, 12)] == [0.25, 1.0, 1.5, 2.0, 3.0]
    costs.measured(SIZES[-1] + 1, 50.0)
    assert costs.of(16) == 4.0
    for _ in range(FORGOTTEN):
        costs.measured(4, 3.0)
    # What was large once has long been passed by.
    assert costs.of(8) == pytest.approx(4.5, rel=0.01)


def test_a_machine_that_becomes_slower_does_so_for_all_sizes() -> None:
    costs = StepCosts()
    for _ in range(50):
        costs.measured(1, 1.0)
        costs.measured(4, 2.0)
    for _ in range(50):
        costs.measured(1, 1.5)
    assert costs.of(1) == pytest.approx(1.5, rel=0.01)
    assert costs.of(4) == pytest.approx(2 * 1.5 ** (2 / 3), rel=0.02), "nobody measured it since"
    for _ in range(20):
        costs.measured(4, 3.0)
        costs.measured(1, 1.5)
    assert costs.of(4) == pytest.approx(3.0, rel=0.05)


def test_a_first_step_that_was_held_up_is_soon_forgotten() -> None:
    costs = StepCosts()
    costs.measured(4, 10.0)
    for _ in range(20):
        costs.measured(4, 1.0)
    assert costs.of(4) < 1.2
    costs.measured(4, 1000.0)
    assert costs.of(4) < 1.3


def test_drafts_take_nobodys_blocks_and_no_more_than_is_left() -> None:
    limits = config(4, 12, draft_depth=8, fixed_depth=True)
    simulation = Simulation(7, config=limits)
    simulation.submit(*(make_request(index, prompt(5, 10 * index), 6) for index in range(3)))
    simulation.run()
    depths = [row.draft_depth for plan in simulation.plans for row in plan.rows]
    assert max(depths) >= 2
    for plan in simulation.plans:
        assert plan.num_tokens + sum(row.draft_depth for row in plan.rows) <= 12
    assert simulation.scheduler.snapshot().preemptions <= 1
    assert sum(facts.accepted for facts in simulation.facts) > 0
    assert len(simulation.plans) < 3 * 6


def test_steps_in_which_nobody_decodes_decide_nothing() -> None:
    """The scheduler asks for its foreground first, and that may be empty."""
    depths, running = Depths(depth_of(8)), sequences(1)
    drafted = 0
    for _ in range(200):
        assert depths.choose([]) == {}
        chosen = depths.choose(running)
        depth = chosen.get(running[0].id, NO_DRAFTS).depth
        drafted += depth
        depths.judged(running[0], SampleResult(running[0].id, Gained([0] * (depth + 1)), drafted=depth))
        depths.measured(planned(running, chosen), StepResult(0, (), 1.0))
    assert drafted > 800, "all are right, and cost nothing"


def drafted(depths: Depths, running: list[Sequence], chance: float, luck: random.Random) -> tuple[int, StepPlan]:
    """How many tokens are drafted in a step, each right with a chance, and its plan."""
    chosen = depths.choose(running)
    for sequence in running:
        if depth := chosen.get(sequence.id, NO_DRAFTS).depth:
            right = next((place for place in range(depth) if luck.random() >= chance), depth)
            depths.judged(sequence, SampleResult(sequence.id, Gained([0] * (right + 1)), drafted=depth))
    return sum(tree.depth for tree in chosen.values()), planned(running, chosen)


def test_what_pays_for_the_last_of_a_batch_is_not_drafted_for_the_next() -> None:
    luck, depths, running = random.Random(0), Depths(depth_of(8)), sequences(32)
    counts: dict[tuple[int, bool], list[int]] = {(size, first): [] for size in (2, 32) for first in (True, False)}
    for turn in range(60):
        for size in (2, 32):
            for step in range(20):
                count, plan = drafted(depths, running[:size], 0.8, luck)
                # Up to eight tokens cost no more than one.
                seconds = 1.0 + 0.2 * max(0, size + count - 8)
                depths.measured(plan, StepResult(step, (), seconds * luck.uniform(0.95, 1.1)))
                if turn >= 20:
                    counts[size, step == 0].append(count)
    assert sum(counts[2, True]) / 40 > 4, "two have six tokens for nothing"
    assert max(counts[32, True]) <= 2 and sum(counts[32, False]) < 0.1 * 32 * len(counts[32, False])


def test_what_passes_behind_a_step_is_part_of_its_cost() -> None:
    def mean_depth(between: float) -> float:
        luck, depths, running, now, total = random.Random(0), Depths(depth_of(8)), sequences(1), 0.0, 0
        for step in range(1000):
            depths.begin(now)
            count, plan = drafted(depths, running, 0.5, luck)
            depths.measured(plan, StepResult(step, (), 1.0))
            now += 1.0 + (between if count else 0.0)
            total += count
        return total / 1000

    assert mean_depth(0.0) > 3 and mean_depth(0.95) < 0.6


def test_what_drafts_take_now_and_then_is_part_of_their_cost() -> None:
    uneven, even = StepCosts(even=False), StepCosts()
    for _ in range(40):
        for costs in (uneven, even):
            for _ in range(19):
                costs.measured(1, 1.0)
            costs.measured(1, 41.0)
    assert uneven.of(1) == pytest.approx(3.0, rel=0.5) and even.of(1) < 1.5


@pytest.mark.parametrize(
    ("says", "drafting", "alone", "deep"),
    [
        # The text mostly says something, and the model costs half a step a token.
        (0.7, 0.5, 0.8, True),
        # It seldom does, and the model costs little; or costs as much as ever, when only the text is worth a little.
        (0.1, 0.02, 0.0, True),
        (0.0, 1.0, 0.0, False),
    ],
)
def test_the_text_alone_drafts_where_that_pays_better(says: float, drafting: float, alone: float, deep: bool) -> None:
    """Both are right with 0.8. Drafts of the model take time, and the text says something with a chance."""
    luck, depths, running, used = random.Random(0), Depths(depth_of(8, text_drafts=True)), sequences(1), []
    (sequence,) = running
    for step in range(3000):
        depth, _ = depths.choose(running).get(sequence.id, NO_DRAFTS)
        text_only, from_text = depths.text_only, luck.random() < says
        drafted = depth if from_text or not text_only else 0
        right = next((place for place in range(drafted) if luck.random() >= 0.8), drafted)
        if depth:
            answer = SampleResult(sequence.id, Gained([0] * (right + 1)), drafted=drafted)
            assert depths.judged(sequence, answer, text_only=text_only) == right
        seconds = (1.0 + 0.05 * drafted) * luck.uniform(0.95, 1.1)
        spent = 0.01 if from_text or text_only else drafting * depth
        row = RowPlan(sequence.id, 9, 1, [1], None, (sequence.id,), (), depth, text_only=text_only)
        depths.measured(
            StepPlan(0, (row,)), StepResult(step, (), seconds + spent, drafting_seconds=spent * bool(depth))
        )
        if step >= 1000:
            used.append((depth, text_only))
    drafts = [text_only for depth, text_only in used if depth]
    assert (len(drafts) > 0.8 * len(used)) if deep else (len(drafts) < 0.1 * len(used))
    if deep:
        assert abs(sum(drafts) / len(drafts) - alone) <= 0.2
