"""Requests that are left at random points cost a real engine nothing: no block, no memory, no descriptor, no thread.

`--aborts` says how many; `make soak` has 10,000.
"""

import asyncio
import contextlib
import itertools
import random
import sys
from pathlib import Path

import psutil
import pytest

from penstock import LLM, SamplingParams
from penstock.assembly.prepare import engine_command, prepare
from penstock.configuration.options import EngineOptions
from penstock.core.events import LoadSnapshot
from penstock.core.request import KeptPrefix, Standing
from penstock.engine.client import Engine
from penstock.engine.process import EngineProcess
from support.checkpoints import VOCAB_SIZE, make
from support.waiting import PATIENCE, patiently, reached

BESIDE = 16
MEBIBYTE = 1 << 20
# A pool so small that it is used all over before memory is looked at.
OPTIONS = {"threads": 1, "max_model_len": 256, "kv_cache_memory": 2 * MEBIBYTE, "max_num_seqs": 8}
PROMPT = list(range(10, 60))
PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=40, n=2, ignore_eos=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("mistral", tmp_path_factory.mktemp("mistral"))


async def begin(path: Path) -> Engine:
    command = engine_command(sys.executable)
    engine = await Engine.start(lambda: EngineProcess.start(command, lambda done, total: None))
    prepared = prepare(EngineOptions.of(model=str(path), **OPTIONS), api_beside=True)
    engine.configure(prepared.config)
    await engine.ready(prepared.model_info(None), None)
    return engine


def random_prompt(rng: random.Random) -> list[int]:
    shared = PROMPT[: rng.choice([0, 16, 50])]
    return shared + [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.choice([1, 5, 100]))]


async def leave(engine: Engine, rng: random.Random) -> str:
    """Ask for something and leave; where the request was then."""
    prompt = random_prompt(rng)
    standing = Standing(priority=rng.choice([0, 0, 1, 2**31]), cache_salt=rng.choice(["", "other"]))
    if rng.random() < 0.1:
        stream = engine.embed(prompt, "mean", standing=standing)
    else:
        params = SamplingParams(
            n=rng.choice([1, 1, 3]),
            max_tokens=rng.choice([1, 4, 100]),
            seed=rng.randrange(1000),
            prompt_logprobs=rng.choice([None, None, 2]),
            ignore_eos=True,
        )
        keep = (KeptPrefix(16, 0.05),) if rng.random() < 0.1 else ()
        stream = engine.generate(prompt, params, standing=standing, keep=keep)
    async with contextlib.aclosing(stream):
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(rng.choice([0.0, 0.0, 0.001, 0.01, 0.05]))
        if rng.random() < 0.5:
            first.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await first
                return "done before it was left"
            return "waiting for its first output"
        output = await first
        # What comes meanwhile is never read.
        await asyncio.sleep(rng.choice([0.0, 0.0, 0.01, 0.1]))
        for _ in range(rng.choice([0, 0, 1, 5])):
            if output.finished:
                return "finished"
            output = await anext(stream)
        return "finished" if output.finished else "decoding"


async def settled(engine: Engine) -> LoadSnapshot:
    """The load once everybody has left."""
    await reached(lambda: not (engine.load.running or engine.load.waiting or engine.load.blocks_used))
    return engine.load


async def abort_many(engine: Engine, count: int, seed: int) -> set[str]:
    where: set[str] = set()
    numbers = iter(range(count))

    async def user() -> None:
        for number in numbers:
            where.add(await leave(engine, random.Random(seed * 1_000_000 + number)))

    await asyncio.gather(*(user() for _ in range(BESIDE)))
    return where


def test_aborts_at_random_points(checkpoint: Path, pytestconfig: pytest.Config) -> None:
    count = pytestconfig.getoption("aborts")
    (completion,) = LLM(str(checkpoint), threads=1, max_model_len=256).generate([PROMPT], PARAMS)
    expected = [sample.token_ids for sample in completion.samples]

    async def main() -> None:
        engine = await begin(checkpoint)
        try:
            process = psutil.Process(engine.process_id)
            where: set[str] = set()
            resident: list[int] = []
            handles: set[tuple[int, int]] = set()
            for first in range(0, count, 1000):
                where |= await abort_many(engine, min(1000, count - first), first)
                load = await settled(engine)
                assert (load.running, load.waiting, load.waiting_tokens, load.blocks_used) == (0, 0, 0, 0)
                assert load.blocks_free + load.blocks_cached == load.blocks_total
                resident.append(process.memory_info().rss)
                handles.add((process.num_fds(), process.num_threads()))
            # On a busy machine few are left in some stage, or none; there are more until each has been seen.
            for seed in itertools.count(count):
                if len(where) == 4 and engine.load.preemptions > 0:
                    break
                where |= await abort_many(engine, 2 * BESIDE, seed)
                await settled(engine)
            assert engine.load.restarts == 0
            assert len(handles) == 1, "descriptors or threads have become more"
            for fewer, more in zip(resident[:1], resident[-1:], strict=True):
                assert more - fewer <= (len(resident) - 1) * MEBIBYTE, resident
            print(f"{count} aborts; resident MiB after each 1,000: {[size // MEBIBYTE for size in resident]}")
            tokens: list[list[int]] = [[], []]
            async for output in engine.generate(PROMPT, PARAMS):
                for delta in output.deltas:
                    tokens[delta.index] += delta.token_ids
            assert tokens == expected
        finally:
            await engine.close()

    asyncio.run(patiently(main(), PATIENCE + count))
