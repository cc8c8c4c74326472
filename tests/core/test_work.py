"""What steps must do at least, against counting one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.facts import Chunk, StepFacts
from penstock.core.work import ExpertWork, LayerWork, ModelWork, kept_bytes, merge


@given(st.integers(0, 40), st.integers(1, 40), st.none() | st.integers(1, 50))
def test_a_chunk_is_counted_position_by_position(start: int, count: int, window: int | None) -> None:
    model = ModelWork(100, 50, 3, 7, (LayerWork(2, 10, 5, window),))
    step = StepFacts(chunk_tokens=count, chunks=[Chunk(0, 0, start, count)])
    seen_by = [
        {other for other in range(position + 1) if window is None or other > position - window}
        for position in range(start, start + count)
    ]
    moved, operations = model.of(step)
    assert moved == 100 + 2 * 10 * (len(set().union(*seen_by)) + count)
    assert operations == 3 * count + 4 * 2 * 5 * sum(map(len, seen_by))


def test_decodes_read_their_contexts_and_the_head() -> None:
    model = ModelWork(100, 50, 3, 7, (LayerWork(1, 10, 5), LayerWork(1, 10, 5, window=8)))
    moved, operations = model.of(StepFacts(decodes=2, sampled=2, context=40))
    assert moved == 100 + 50 + 10 * (40 + 2) + 10 * (16 + 2)
    assert operations == 2 * 3 + 2 * 7 + 4 * 5 * (40 + 16)


@pytest.mark.parametrize(("window", "seen"), [(None, 30), (8, 8)])
def test_of_late_layers_a_prompt_needs_its_last_token_alone(window: int | None, seen: int) -> None:
    experts = ExpertWork(2, 4, 4, 6, 11, late=True)
    model = ModelWork(100, 50, 3, 7, (LayerWork(2, 10, 5, window, late=True),), (experts,))
    chunks = [Chunk(0, 0, 10, 20), Chunk(1, 0, 0, 40)]
    # Neither chunk ends its prompt: late layers are not reached, and their weights not read.
    assert model.of(StepFacts(chunk_tokens=60, chunks=chunks)) == (100, 3 * 60)
    # One does. They store nothing.
    moved, operations = model.of(StepFacts(chunk_tokens=60, sampled=1, chunks=chunks))
    assert moved == 100 + 50 + 2 * 10 * seen + 2 * 4 * 6
    assert operations == 3 * 60 + 7 + 4 * 2 * 5 * seen + 2 * 4 * 11


def test_decodes_reach_late_layers() -> None:
    model = ModelWork(100, 50, 3, 7, (LayerWork(1, 10, 5, late=True),))
    assert model.of(StepFacts(decodes=2, sampled=2, context=40)) == (150 + 10 * 40, 2 * 10 + 4 * 5 * 40)


def test_layers_that_are_alike_are_counted_together() -> None:
    assert merge([LayerWork(1, 10, 5), LayerWork(1, 10, 5, 8), LayerWork(2, 10, 5)]) == (
        LayerWork(3, 10, 5),
        LayerWork(1, 10, 5, 8),
    )


def test_bytes_of_weights_are_those_of_what_they_are_kept_as() -> None:
    assert kept_bytes(100, "none", 2) == 200 and kept_bytes(100, "int8", 2) == 100
    assert kept_bytes(100, "int4", 2) == pytest.approx(53.125)
    assert kept_bytes(100, "own", 2, (60, 30)) == 40 * 2 + 30
