"""Lengths have the distribution that is written."""

import random
import statistics

import pytest

from penstock.bench.load.lengths import Lengths, parse_lengths
from penstock.core.errors import ConfigurationError


def drawn(text: str) -> list[int]:
    source, lengths = random.Random(0), parse_lengths(text, "--input-len")
    return [lengths.draw(source) for _ in range(20_000)]


def test_a_number_is_always_the_same() -> None:
    assert parse_lengths("128", "--input-len") == Lengths("fixed", 128)
    assert set(drawn("128")) == {128}


def test_a_range_is_uniform_with_both_ends() -> None:
    assert set(drawn("5-8")) == {5, 6, 7, 8}
    assert statistics.fmean(drawn("10-90")) == pytest.approx(50, rel=0.02)


@pytest.mark.parametrize("shape", ["normal", "lognormal"])
def test_mean_and_deviation_are_those_of_the_lengths(shape: str) -> None:
    found = drawn(f"{shape}:500,100")
    assert statistics.fmean(found) == pytest.approx(500, rel=0.02)
    assert statistics.pstdev(found) == pytest.approx(100, rel=0.05)


def test_no_length_is_below_one() -> None:
    assert min(drawn("normal:2,50")) == 1


@pytest.mark.parametrize("text", ["", "0", "8-5", "-3", "normal:5", "gamma:1,2", "normal:0,1", "1e3", "99999999"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--output-len"):
        parse_lengths(text, "--output-len")
