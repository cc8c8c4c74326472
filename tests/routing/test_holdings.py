"""The index of what replicas hold, beside one that says the same of a plain set."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.routing.holdings import Holdings, Recent

PROMPTS = [[1, 2, 3, 4], [1, 2, 30], [10, 20, 30, 40, 50], [1]]
REPLICAS = st.integers(0, 3)
prompts = st.sampled_from(PROMPTS).flatmap(lambda keys: st.integers(0, len(keys)).map(lambda count: keys[:count]))


def held(holdings: Holdings, replica: int) -> set[int]:
    """The keys of a replica's blocks."""
    return {key for keys in PROMPTS for key in keys if replica in holdings.hits([key])}


class AsASetOfPairs(RuleBasedStateMachine):
    """With room for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.holdings = Holdings(1000)
        self.pairs: set[tuple[int, int]] = set()

    @rule(replica=REPLICAS, keys=prompts)
    def stored(self, replica: int, keys: list[int]) -> None:
        self.holdings.stored(replica, keys)
        self.pairs |= {(replica, key) for key in keys}

    @rule(replica=REPLICAS, keys=prompts)
    def removed(self, replica: int, keys: list[int]) -> None:
        self.holdings.removed(replica, keys)
        self.pairs -= {(replica, key) for key in keys}

    @rule(replica=REPLICAS)
    def cleared(self, replica: int) -> None:
        self.holdings.removed(replica, [key for place, key in self.pairs if place == replica])
        self.pairs = {pair for pair in self.pairs if pair[0] != replica}

    @rule(keys=prompts)
    def hits(self, keys: list[int]) -> None:
        found = {}
        for replica in range(4):
            depth = 0
            while depth < len(keys) and (replica, keys[depth]) in self.pairs:
                depth += 1
            if depth:
                found[replica] = depth
        assert self.holdings.hits(keys) == found

    @invariant()
    def holds_the_same(self) -> None:
        assert len(self.holdings) == len({key for _, key in self.pairs})
        for replica in range(4):
            assert held(self.holdings, replica) == {key for place, key in self.pairs if place == replica}


TestAsASetOfPairs = AsASetOfPairs.TestCase


def test_what_was_used_longest_ago_is_forgotten_first_and_its_end_before_its_beginning() -> None:
    holdings = Holdings(5)
    holdings.stored(0, [1, 2, 3])
    holdings.stored(1, [10, 20])
    assert holdings.hits([1, 2, 3]) == {0: 3}
    holdings.stored(1, [10, 20, 30])
    assert holdings.forgotten == 1 and holdings.hits([1, 2, 3]) == {0: 2}
    # The look-up was a use.
    holdings.stored(2, [100, 200, 300])
    assert holdings.forgotten == 4 and len(holdings) == 5
    assert holdings.hits([10, 20, 30]) == {} and holdings.hits([1, 2]) == {0: 2}


@given(st.lists(prompts, max_size=30), st.integers(1, 6))
def test_a_guess_has_no_more_than_the_cache_has_room_for(sent: list[list[int]], blocks: int) -> None:
    holdings = Holdings(1000)
    recent = Recent(holdings, 2, blocks)
    for keys in sent:
        recent.sent(keys)
        assert len(held(holdings, 2)) <= blocks
        # The last prompt's beginning is there, as far as there is room.
        assert holdings.hits(keys).get(2, 0) == min(blocks, len(keys))
