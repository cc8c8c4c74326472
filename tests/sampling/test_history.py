import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.sampling.history import TokenHistory

TOKENS = st.lists(st.integers(0, 60), max_size=200)


@given(TOKENS, TOKENS)
def test_counting_one_by_one_equals_counting_from_scratch(prompt, output):
    history = TokenHistory(prompt)
    for length, token in enumerate(output, 1):
        history.add(token)
        if length % 37 and length != len(output):
            continue
        order = np.argsort(history.ids)
        assert history.ids[order].tolist() == sorted(set(prompt) | set(output[:length]))
        assert history.counts[order].tolist() == [output[:length].count(token) for token in history.ids[order]]


def test_more_tokens_than_there_was_room_for() -> None:
    history = TokenHistory([7])
    for token in range(100):
        history.add(token)
    assert dict(zip(history.ids.tolist(), history.counts.tolist(), strict=True)) == dict.fromkeys(range(100), 1.0)
