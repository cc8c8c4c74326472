"""Numbers of processes that are left to the plan."""

import msgspec
import pytest

from penstock.core.errors import ConfigurationError
from penstock.planning.calibration import prior_basis
from penstock.planning.choosing import Choice, Open, choose
from penstock.planning.rank_costs import PRIORS, RankCosts
from penstock.planning.ranks import ranks_of
from support.cores import one

ALL_OPEN = Open(None, None, None, None)


def chosen(asked: Open = ALL_OPEN, threads: int = 4, measured: tuple[RankCosts, ...] = ()) -> Choice:
    return choose(one(), prior_basis(one()), asked, threads, measured)


def sizes(choice: Choice) -> tuple[int, ...]:
    return choice.split, choice.experts, choice.stages, choice.stripes


def test_one_process_is_chosen_on_one_machine_and_the_reason_says_what_it_was_compared_to() -> None:
    choice = chosen()
    assert sizes(choice) == (1, 1, 1, 1)
    assert choice.why.startswith("one process yields the most of requests with 1,024 tokens in and 256 out")
    for way in ("one process ", "TP 2 ", "PP 2 ", "CP 2 "):
        assert way in choice.why
    assert "nothing of this processor was measured" in choice.why


def test_of_several_machines_each_has_a_stage() -> None:
    choice = chosen(msgspec.structs.replace(ALL_OPEN, machines=3))
    assert sizes(choice) == (1, 1, 3, 1) and "each of 3 machines has a stage" in choice.why


def test_what_was_asked_for_stays() -> None:
    assert sizes(chosen(Open(2, 1, None, 1))) == (2, 1, 1, 1)
    assert sizes(chosen(Open(None, 2, 1, 1))) == (2, 2, 1, 1)
    assert sizes(chosen(Open(1, 1, 4, None))) == (1, 1, 4, 1)
    assert sizes(chosen(Open(1, 1, None, 2))) == (1, 1, 1, 2)


def test_ranks_that_were_measured_to_be_faster_are_chosen() -> None:
    two = ranks_of(msgspec.structs.replace(one(), split=2))
    faster = msgspec.structs.replace(PRIORS["parts"], waits=-0.4, said="steps of two ranks", of=two)
    choice = chosen(Open(None, None, None, 1), measured=(faster,))
    # Of four ranks, nothing was measured.
    assert choice.split == 2 and choice.why.startswith("TP 2 ")
    assert "steps of two ranks" in choice.why and "a prior: " in choice.why


def test_one_thread_leaves_nothing_to_choose() -> None:
    choice = chosen(threads=1)
    assert sizes(choice) == (1, 1, 1, 1) and "no other way" in choice.why


def test_more_than_there_are_threads_for_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="No number of processes up to the 2 threads"):
        chosen(Open(None, 4, None, None), threads=2)
