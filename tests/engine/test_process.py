"""The engine in its own process: outputs, refusals, cancellation."""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock import LLM, AsyncEngine, SamplingParams
from penstock.core.errors import (
    ContextLengthExceeded,
    InvalidParameter,
    ModelFileError,
    PenstockError,
)
from penstock.core.facts import StepFacts
from penstock.engine.interface import RequestOutput
from penstock.engine.worker import IDLE_SECONDS
from support.checkpoints import make
from support.waiting import PATIENCE, patiently, reached

PROMPT = list(range(10, 60))
POOL = 64 << 20
# So long that no engine is done with it while a test looks on.
CONTEXT = 16_384


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("llama"), max_position_embeddings=CONTEXT)


def with_engine(path: Path, use: Callable[[AsyncEngine], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        async with await AsyncEngine.start(str(path), threads=1, **{"max_model_len": 512, **options}) as engine:
            process = engine._engine._process._process
            await use(engine)
        # The engine ends with its client, and in order.
        assert process.wait(timeout=PATIENCE) == 0

    asyncio.run(patiently(main()))


async def collect(engine: AsyncEngine, params: SamplingParams, prompt: list[int] = PROMPT) -> list[RequestOutput]:
    return [output async for output in engine.generate(prompt, params)]


async def until_idle(engine: AsyncEngine) -> None:
    await reached(lambda: not engine.load.blocks_used and not engine.load.running)


async def paused(engine: AsyncEngine) -> None:
    """No step is begun any more, and all has been told of those that were."""
    engine._engine.pause(0)
    assert await engine._engine.inspect() is None


def test_streams_what_the_library_gives(checkpoint: Path) -> None:
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=24, n=2, logprobs=2, ignore_eos=True)
    (expected,) = LLM(str(checkpoint), threads=1, max_model_len=512).generate([PROMPT], params)

    async def use(engine: AsyncEngine) -> None:
        told: list[StepFacts] = []
        engine._engine.observe(told.append)
        outputs = await collect(engine, params)
        # Tokens arrive as they are made, a step's at a time, however many of them this process finds at once.
        assert len(told) == 24
        for sample in expected.samples:
            index = expected.samples.index(sample)
            deltas = [delta for output in outputs for delta in output.deltas if delta.index == index]
            assert [token for delta in deltas for token in delta.token_ids] == sample.token_ids
            assert "".join(delta.text for delta in deltas) == sample.text
            assert [delta.finish_reason for delta in deltas][-1] == sample.finish_reason == "length"
            assert all(delta.finish_reason is None for delta in deltas[:-1])
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        assert outputs[0].seed == 5
        await until_idle(engine)

    with_engine(checkpoint, use)


def test_closing_an_iterator_frees_its_blocks(checkpoint: Path) -> None:
    async def use(engine: AsyncEngine) -> None:
        params = SamplingParams(max_tokens=CONTEXT - 100, ignore_eos=True)
        streams = [engine.generate(PROMPT[index:], params) for index in range(6)]
        for stream in streams:
            await anext(stream)
        await paused(engine)
        assert engine.load.running == 6
        before = engine.load.step
        for stream in streams:
            await stream.aclose()
        await until_idle(engine)
        waiting = asyncio.ensure_future(collect(engine, params))
        await reached(lambda: engine.load.waiting == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await reached(lambda: not engine.load.waiting)
        engine._engine.pause(None)
        assert len(await collect(engine, SamplingParams(max_tokens=1))) == 1
        assert engine.load.step == before + 1

    with_engine(checkpoint, use, max_model_len=CONTEXT)


@pytest.mark.parametrize(
    ("prompt", "params", "error", "says"),
    [
        ([], SamplingParams(max_tokens=1), InvalidParameter, "empty"),
        ([-1], SamplingParams(max_tokens=1), InvalidParameter, "-1"),
        ([320], SamplingParams(max_tokens=1), InvalidParameter, "0..319"),
        ([5] * 512, SamplingParams(), ContextLengthExceeded, "512"),
        ([5] * 500, SamplingParams(max_tokens=13), ContextLengthExceeded, "513"),
        ([5], SamplingParams(stop_token_ids=(4000,)), InvalidParameter, "stop_token_ids"),
        ([5], SamplingParams(logit_bias={4000: 1.0}), InvalidParameter, "logit_bias"),
    ],
)
def test_impossible_requests_are_refused_at_once(
    checkpoint: Path, prompt: list[int], params: SamplingParams, error: type[PenstockError], says: str
) -> None:
    llm = LLM(str(checkpoint), threads=1, max_model_len=512)
    with pytest.raises(error, match=says):
        llm.generate([{"prompt_token_ids": prompt}], params)
    assert llm.generate([[5]], SamplingParams(max_tokens=2, ignore_eos=True))[0].finish_reason == "length"


def test_a_request_beyond_the_pool_is_refused_with_the_numbers(checkpoint: Path) -> None:
    llm = LLM(str(checkpoint), threads=1, max_model_len=64, max_num_seqs=1)
    spec = llm._prepared.config.cache.spec
    needed = spec.blocks_for(64, 2048)
    small = LLM(str(checkpoint), threads=1, kv_cache_memory=(needed - 1) * spec.block_bytes)
    assert small._prepared.config.scheduler.max_model_len == 48
    with pytest.raises(ContextLengthExceeded, match="48"):
        small.generate([[5] * 40], SamplingParams(max_tokens=20))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be asked for memory before it is touched")
def test_memory_is_made_ready_whenever_there_is_nothing_to_do(checkpoint: Path) -> None:
    """Not before the first request, and after it although there was nothing to do before."""

    def resident(engine: AsyncEngine) -> int:
        status = Path(f"/proc/{engine._engine.process_id}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) << 10  # type: ignore[index]

    async def use(engine: AsyncEngine) -> None:
        before = resident(engine)
        await asyncio.sleep(1.5 * IDLE_SECONDS)
        assert resident(engine) < before + POOL // 4
        await collect(engine, SamplingParams(max_tokens=2, ignore_eos=True))
        await reached(lambda: resident(engine) >= before + POOL * 3 // 4)

    with_engine(checkpoint, use, kv_cache_memory=POOL)


def test_what_keeps_an_engine_from_starting_is_raised(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match="truncated"):
        asyncio.run(AsyncEngine.start(str(tmp_path)))


def test_what_was_computed_is_on_the_disk_once_it_is_waited_for(checkpoint: Path, tmp_path: Path) -> None:
    async def use(engine: AsyncEngine) -> None:
        await collect(engine, SamplingParams(max_tokens=1))
        assert await engine._engine.flush(PATIENCE)
        # 16 tokens a block.
        assert len([path for path in tmp_path.glob("*/??/*") if path.suffix != ".part"]) == len(PROMPT) // 16

    with_engine(checkpoint, use, kv_disk=str(tmp_path))


def test_an_engine_that_has_gone_has_written_nothing(checkpoint: Path) -> None:
    async def main() -> None:
        async with await AsyncEngine.start(str(checkpoint), threads=1, max_model_len=512) as engine:
            engine._engine._process.kill()
            assert not await engine._engine.flush(PATIENCE)

    asyncio.run(patiently(main()))
