"""When a rank counts as stopped."""

from penstock.parallel.silence import MOST_SILENT, MOST_SILENT_LOADING, Silence


def test_a_rank_that_moves_now_and_then_is_not_stopped() -> None:
    beats = {1: 0, 2: 0}
    silence = Silence([1, 2], beats.__getitem__)
    for turn in range(10 * MOST_SILENT):
        beats[1] += 1
        beats[2] += turn % (MOST_SILENT - 1) == 0
        assert silence.look() is None


def test_the_one_that_does_not_move_is_named() -> None:
    beats = {1: 7, 2: 7}
    silence = Silence([1, 2], beats.__getitem__)
    found = []
    for _ in range(MOST_SILENT):
        beats[1] += 1
        found.append(silence.look())
    assert found == [None] * (MOST_SILENT - 1) + [2]


def test_ranks_that_load_have_longer() -> None:
    silence = Silence([1], lambda _rank: 0, most=MOST_SILENT_LOADING)
    assert [silence.look() for _ in range(MOST_SILENT_LOADING)] == [None] * (MOST_SILENT_LOADING - 1) + [1]
