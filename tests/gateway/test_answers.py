"""Answers in memory, against a naive model on a made-up clock."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.gateway.answers import Answer, AnswerCacheOptions, Found, OwnAnswers

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
EVENTS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.integers(0, 4000), st.integers(1, 50)),
    st.tuples(st.just("find"), KEYS, st.integers(0, 60)),
    st.tuples(st.just("wait"), st.integers(0, 30)),
)


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Naive:
    """A list, the least recently used first, that is looked through from its beginning."""

    def __init__(self, most: int) -> None:
        self.most, self.kept = most, list[tuple[bytes, Answer, float, float]]()

    def find(self, key: bytes, most_age: float, now: float) -> Found | None:
        self.kept = [each for each in self.kept if each[0] != key or now - each[2] < each[3]]
        for each in self.kept:
            if each[0] == key and now - each[2] < most_age:
                self.kept = [other for other in self.kept if other is not each] + [each]
                return Found(each[1], now - each[2])
        return None

    def put(self, key: bytes, answer: Answer, seconds: float, now: float) -> None:
        self.kept = [each for each in self.kept if each[0] != key]
        if answer.size <= self.most:
            self.kept.append((key, answer, now, seconds))
            while sum(each[1].size for each in self.kept) > self.most:
                self.kept.pop(0)


@given(st.integers(1, 12_000), st.lists(EVENTS, max_size=60))
def test_it_does_what_a_naive_model_does(most: int, events: list[tuple]) -> None:  # type: ignore[type-arg]
    clock, naive = Clock(), Naive(most)
    answers = OwnAnswers(most, clock)
    for number, event in enumerate(events):
        match event:
            case "put", key, length, seconds:
                answer = Answer([(b"content-type", b"application/json")], b"%d " % number + b"x" * length)
                answers.put(key, answer, seconds)
                naive.put(key, answer, seconds, clock.now)
            case "find", key, most_age:
                assert asyncio.run(answers.find(key, most_age)) == naive.find(key, most_age, clock.now)
            case "wait", seconds:
                clock.now += seconds
        assert answers.size == sum(each[1].size for each in naive.kept) <= most


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_answer_bytes": 0}, "max_answer_bytes is 0; it must be from 1 to max_bytes"),
        ({"max_bytes": 10, "max_answer_bytes": 11}, "max_answer_bytes is 11; it must be from 1 to max_bytes, 10"),
        ({"store_seconds": 0.0}, "store_seconds is 0; it must be from 0.001"),
    ],
)
def test_what_cannot_be_asked_for(fields: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        AnswerCacheOptions(**fields).check()  # type: ignore[arg-type]
