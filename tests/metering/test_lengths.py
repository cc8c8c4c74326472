"""Answers are expected to be as long as those that there were."""

import random

from penstock.metering.lengths import AnswerLengths


def test_few_are_longer_than_expected() -> None:
    lengths, chance = AnswerLengths(), random.Random(0)
    longer = 0
    for number in range(2000):
        tokens = round(chance.lognormvariate(5, 0.6))
        longer += number >= 100 and tokens > lengths.expect("a", None)
        lengths.observe("a", tokens)
    assert longer < 0.08 * 1900


def test_all_the_same() -> None:
    lengths = AnswerLengths()
    for _ in range(500):
        lengths.observe("a", 40)
    assert lengths.expect("a", None) <= 45 and lengths.expect("a", 30) == 30
    # Of others nothing is known.
    assert lengths.expect("b", None) == 512


def test_tenants_that_have_not_asked_for_long_are_forgotten() -> None:
    lengths = AnswerLengths()
    for number in range(10_001):
        lengths.observe(str(number), 10)
    assert lengths.expect("0", None) == 512 != lengths.expect("1", None)
