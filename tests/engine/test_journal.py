"""What a client learns of a request's way through the engine."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import AsyncEngine, SamplingParams
from penstock.core.facts import Admission, Chunk, Fetched, PrefixFound, StepFacts, StepTotals, TierCame, TierFound
from penstock.engine.journal import MOST_CHUNKS, Fetch, Journal, Mark
from support.checkpoints import make
from support.waiting import patiently, reached


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def running(checkpoint: Path) -> Iterator[tuple[asyncio.Runner, AsyncEngine]]:
    """An engine with little room, and the event loop that it is for."""
    options = {"threads": 1, "max_model_len": 512, "max_num_batched_tokens": 32, "max_num_seqs": 2}
    with asyncio.Runner() as runner:
        engine = runner.run(AsyncEngine.start(str(checkpoint), **options))
        yield runner, engine
        runner.run(engine.close())


async def run(
    engine: AsyncEngine, prompt: list[int], tokens: int, most: int | None = None, followed: list[Journal] | None = None
) -> Journal:
    """The journal of one request, which is read up to `most` outputs; it is `followed` once it was submitted."""
    journals: list[Journal] = []

    def follow(journal: Journal) -> None:
        journals.append(journal)
        if followed is not None:
            followed.append(journal)

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    outputs = engine.generate(prompt, params, follow=follow)
    async with contextlib.aclosing(outputs):
        count = 0
        async for _ in outputs:
            count += 1
            if count == most:
                break
    (journal,) = journals
    return journal


def check(journal: Journal) -> None:
    """What is true of everyone who got to its end."""
    marks = [journal.submitted, journal.admitted, journal.first_token, journal.finished]
    moments = [mark.at for mark in marks if mark is not None]
    assert len(moments) == 4 and moments == sorted(moments)
    assert journal.prefix is not None
    assert journal.computed_tokens == journal.prompt_tokens - journal.prefix.found
    assert sum(chunk.tokens for chunk in journal.chunks) == journal.computed_tokens


def test_a_request_is_followed_from_its_queue_to_its_end(running: tuple[asyncio.Runner, AsyncEngine]) -> None:
    runner, engine = running

    async def main() -> None:
        alone = await run(engine, list(range(10, 60)), 12)
        check(alone)
        assert [(chunk.start, chunk.tokens) for chunk in alone.chunks] == [(0, 32), (32, 18)]
        assert alone.output_tokens == 12
        assert alone.first_token is not None and alone.finished is not None
        decoding = alone.finished.totals.since(alone.first_token.totals)
        assert (decoding.steps, decoding.decodes, decoding.chunk_steps) == (11, 11, 0)
        assert decoding.bytes > 0 and decoding.operations > 0 and decoding.execute > 0
        # The same beginning again, and then another token.
        again = await run(engine, [*range(10, 45), *range(70, 90)], 4)
        check(again)
        assert again.prefix is not None
        assert (again.prefix.found, again.prefix.missing, again.prefix.position) == (32, "different", 35)
        assert again.prefix.cached_token == 45
        # Of three that have come before anything is computed, one waits for a row.
        client, followed = engine._engine, list[Journal]()
        client.pause(0)
        runs = [asyncio.create_task(run(engine, list(range(n, n + 20)), 10, None, followed)) for n in (100, 150, 200)]
        await reached(lambda: len(followed) == 3)
        client.pause(None)
        three = await asyncio.gather(*runs)
        for journal in three:
            check(journal)
        waits = [journal.admitted.totals.since(journal.submitted.totals) for journal in three if journal.admitted]
        assert max(wait.waited_for().get("rows", 0.0) for wait in waits) > 0
        # A client that leaves has an end too, here before all is computed.
        client.pause(5)
        left = await run(engine, list(range(240, 260)), 100, most=1)
        assert left.finished is not None and 0 < left.output_tokens <= 5
        client.pause(None)
        assert engine.totals.steps >= sum(1 for _ in three)

    runner.run(patiently(main()))


def test_of_very_many_chunks_the_first_and_the_last_are_kept() -> None:
    journal = Journal(1000, Mark(0.0, StepTotals()))
    for number in range(MOST_CHUNKS + 10):
        journal.chunk(Chunk(0, 0, 8 * number, 8), StepFacts(began=float(number), chunk_tokens=12, decodes=3))
    assert len(journal.chunks) == MOST_CHUNKS and journal.chunks_left_out == 10
    assert journal.computed_tokens == 8 * (MOST_CHUNKS + 10)
    assert [chunk.start for chunk in journal.chunks[:3]] == [0, 8, 16]
    assert journal.chunks[-1].start == 8 * (MOST_CHUNKS + 9)
    assert (journal.chunks[0].beside_tokens, journal.chunks[0].beside_rows) == (4, 3)


def test_whoever_was_preempted_by_an_engine_that_ended_is_begun_anew() -> None:
    journal = Journal(100, Mark(0.0, StepTotals()))
    journal.preemption(StepFacts(began=1.0))
    journal.interruption(Mark(2.0, StepTotals()))
    assert journal.returned == journal.interrupted == [2.0]
    # It has not lost anything to the next one.
    journal.interruption(Mark(3.0, StepTotals()))
    assert journal.returned == [2.0]


def test_an_observer_that_fails_is_left_and_nobody_else_notices(
    running: tuple[asyncio.Runner, AsyncEngine], caplog: pytest.LogCaptureFixture
) -> None:
    runner, engine = running
    seen: list[StepFacts] = []

    def failing(step: StepFacts) -> None:
        raise ValueError("of this test")

    async def main() -> None:
        engine._engine.observe(failing)
        engine._engine.observe(seen.append)
        check(await run(engine, list(range(10, 60)), 5))

    runner.run(patiently(main()))
    assert len(seen) >= 5
    assert caplog.text.count("An observer of the engine's steps failed") == 1


FROM_DISK = PrefixFound(96, 64, tiers=(TierFound("pool", 16), TierFound("disk", 48, 3000)))


def admitted(journal: Journal, at: float, prefix: PrefixFound, *, again: bool = False, sample: int = 0) -> None:
    journal.admission(Admission(0, sample, again, prefix), StepFacts(began=at), StepTotals(steps=int(at)))


def test_what_is_read_from_a_tier_is_waited_for() -> None:
    journal = Journal(100, Mark(0.0, StepTotals()))
    admitted(journal, 1.0, FROM_DISK)
    assert journal.begun is None and journal.fetches == [Fetch("disk", 1.0, 48)]
    journal.fetched(
        Fetched(0, 0, [TierCame("disk", 48, bytes=3000)]), StepFacts(began=2.0, execute=0.5), StepTotals(steps=3)
    )
    assert journal.begun == Mark(2.5, StepTotals(steps=3))
    assert journal.prefix == FROM_DISK and journal.fetches[0].bytes == 3000


def test_what_could_not_be_read_was_not_found() -> None:
    journal = Journal(100, Mark(0.0, StepTotals()))
    admitted(journal, 1.0, FROM_DISK)
    lost = Fetched(0, 0, [TierCame("disk", 16, 32, "failed", 1000)])
    journal.fetched(lost, StepFacts(began=2.0, execute=0.5), StepTotals())
    admitted(journal, 3.0, PrefixFound(96, 32, "evicted", tiers=(TierFound("pool", 32),)))
    assert journal.admitted is not None and (journal.admitted.at, journal.returned) == (1.0, [])
    tiers = (TierFound("pool", 16), TierFound("disk", 16, 1000, 32, "failed"))
    assert journal.prefix == PrefixFound(96, 32, "evicted", tiers=tiers)


def test_what_is_late_is_waited_for_until_it_is_given_up() -> None:
    journal = Journal(100, Mark(0.0, StepTotals()))
    admitted(journal, 1.0, FROM_DISK)
    journal.fetched(
        Fetched(0, 0, [TierCame("disk", left=48, why_left="late")]), StepFacts(began=4.0, execute=9.0), StepTotals()
    )
    assert journal.begun is not None and journal.begun.at == 4.0
    # It comes all the same, after the request was computed.
    journal.fetched(Fetched(0, 0, [TierCame("disk", why_left="late", bytes=3000)]), StepFacts(began=20.0), StepTotals())
    assert journal.begun.at == 4.0 and len(journal.fetches) == 1
    # Where it is let in again in the same step, that is told before.
    other = Journal(100, Mark(0.0, StepTotals()))
    admitted(other, 1.0, FROM_DISK)
    admitted(other, 4.0, PrefixFound(96, 16, "unseen"))
    assert other.begun is not None and (other.begun.at, other.fetches[0].why_left) == (4.0, "late")
    assert other.prefix is not None and (other.prefix.found, other.prefix.tiers[1].left) == (16, 48)


def test_an_engine_that_ends_brings_nothing_any_more() -> None:
    journal = Journal(100, Mark(0.0, StepTotals()))
    admitted(journal, 1.0, FROM_DISK)
    journal.interruption(Mark(2.0, StepTotals()))
    admitted(journal, 3.0, PrefixFound(96, 0, "unseen"))
    assert journal.begun is not None and journal.begun.at == 2.0 and journal.prefix == FROM_DISK


def test_other_samples_wait_for_themselves() -> None:
    journal = Journal(100, Mark(0.0, StepTotals()))
    admitted(journal, 1.0, PrefixFound(96, 0, "unseen"))
    admitted(journal, 2.0, FROM_DISK, sample=1)
    assert journal.fetches == [] and journal.begun == journal.admitted
