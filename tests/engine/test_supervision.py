"""Engines that end, hang or fail while they compute: they are started again, and requests go on as if nothing was."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from penstock import LLM, SamplingParams
from penstock.assembly.prepare import engine_command, prepare
from penstock.configuration.options import EngineOptions
from penstock.core.errors import EngineError, EngineUnavailable
from penstock.core.faults import POINTS, FailAction, Fault
from penstock.core.request import Standing
from penstock.engine.client import Engine
from penstock.engine.interface import RequestOutput
from penstock.engine.messages import Ready
from penstock.engine.process import EngineProcess
from penstock.engine.watch import Patience
from support.checkpoints import make
from support.pairing import paired
from support.waiting import PATIENCE, patiently, reached

PROMPT = list(range(10, 60))
LONG = SamplingParams(temperature=0.8, seed=5, max_tokens=300, n=2, logprobs=1, ignore_eos=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[list[int]]:
    (completion,) = LLM(str(checkpoint), threads=1, max_model_len=512).generate([PROMPT], LONG)
    return [sample.token_ids for sample in completion.samples]


# How many ends follow each other is the tests' doing, and no reason to wait before the next start.
AT_ONCE = Patience(settled_seconds=0.0)


@contextlib.asynccontextmanager
async def running(
    path: Path, patience: Patience | None = None, process: type[EngineProcess] = EngineProcess, **options: int
) -> AsyncIterator[Engine]:
    command = engine_command(sys.executable)
    engine = await Engine.start(lambda: process.start(command, lambda done, total: None), patience)
    try:
        settings = EngineOptions.of(model=str(path), threads=1, max_model_len=512, **options)
        prepared = prepare(settings, api_beside=True)
        tokenizer = prepared.load_tokenizer()
        engine.configure(prepared.config)
        await engine.ready(prepared.model_info(tokenizer), tokenizer.table if tokenizer else None)
        yield engine
    finally:
        await engine.close()


def with_engine(
    path: Path,
    use: Callable[[Engine], Awaitable[None]],
    patience: Patience | None = None,
    process: type[EngineProcess] = EngineProcess,
    **options: int,
) -> None:
    async def main() -> None:
        async with running(path, patience, process, **options) as engine:
            await use(engine)

    asyncio.run(patiently(main()))


def joined(outputs: list[RequestOutput]) -> tuple[list[list[int]], list[int]]:
    """The tokens of both samples, and how many log probabilities came with them."""
    tokens: list[list[int]] = [[], []]
    scored = [0, 0]
    for output in outputs:
        for delta in output.deltas:
            tokens[delta.index] += delta.token_ids
            scored[delta.index] += len(delta.logprobs or ())
    return tokens, scored


async def until_served_again(engine: Engine) -> None:
    await reached(lambda: is_ready(engine))


def is_ready(engine: Engine) -> bool:
    try:
        engine.check_ready()
    except EngineUnavailable:
        return False
    return True


async def impatience(engine: Engine) -> None:
    """Have a process that hangs killed soon, and give the next one the time that it needs to start."""
    usual, first = engine._patience, engine.process_id
    engine._patience = msgspec.structs.replace(usual, look_seconds=0.1, unready_seconds=0.6, hang_seconds=1.5)
    await reached(lambda: engine.process_id != first)
    engine._patience = usual


class ShortLived(EngineProcess):
    """Ends in its first step, as long as `lives` lasts."""

    lives = 0

    async def ready(self) -> Ready:
        ready = await super().ready()
        if ShortLived.lives:
            ShortLived.lives -= 1
            self.arm(Fault("engine.step", "exit"))
        return ready


class Survivor:
    """An engine that is lost again and again; a test begins with the process that served at the end of another."""

    def __init__(self, runner: asyncio.Runner, engine: Engine) -> None:
        self._runner, self._engine = runner, engine

    def loses(self, count: int, use: Callable[[Engine], Awaitable[None]]) -> None:
        """So many processes end in `use`."""

        async def used() -> None:
            before = self._engine.load.restarts
            await use(self._engine)
            await until_served_again(self._engine)
            assert self._engine.load.restarts == before + count

        self._runner.run(patiently(used()))


@pytest.fixture(scope="module")
def survivor(checkpoint: Path) -> Iterator[Survivor]:
    """Nobody watches it between tests, when its event loop stands still."""
    with asyncio.Runner() as runner:
        context = running(checkpoint, AT_ONCE, ShortLived)
        yield Survivor(runner, runner.run(context.__aenter__()))
        runner.run(context.__aexit__(None, None, None))


def test_a_stream_goes_on_where_a_killed_engine_left_it(survivor: Survivor, expected: list[list[int]]) -> None:
    async def use(engine: Engine) -> None:
        first = engine.process_id
        outputs: list[RequestOutput] = []
        async for output in engine.generate(PROMPT, LONG):
            outputs.append(output)
            if len(outputs) == 3:
                os.kill(first, signal.SIGKILL)
        assert joined(outputs) == (expected, [300, 300])
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        # Where this process stood still for long, the engine had told all of it before it was killed.
        await reached(lambda: engine.process_id != first)

    survivor.loses(1, use)


def test_requests_without_output_are_computed_by_the_next_engine(survivor: Survivor, expected: list[list[int]]) -> None:
    async def collect(engine: Engine) -> list[RequestOutput]:
        return [output async for output in engine.generate(PROMPT, LONG)]

    async def use(engine: Engine) -> None:
        # A stopped process has computed nothing, and ends all the same.
        os.kill(engine.process_id, signal.SIGSTOP)
        tasks = [asyncio.ensure_future(collect(engine)) for _ in range(8)]
        await reached(lambda: len(engine._process._waiters) == len(tasks))
        os.kill(engine.process_id, signal.SIGKILL)
        with pytest.raises(EngineUnavailable, match="started again"):
            while True:
                engine.check_ready()
                await asyncio.sleep(0.005)
        for outputs in await asyncio.gather(*tasks):
            assert joined(outputs)[0] == expected

    survivor.loses(1, use)


@pytest.mark.parametrize(
    "point, action", paired([(point,) for point in sorted(POINTS) if point.startswith("engine.")], ["raise", "exit"])
)
def test_a_step_that_fails_costs_nobody_anything(
    survivor: Survivor, expected: list[list[int]], point: str, action: FailAction
) -> None:
    async def use(engine: Engine) -> None:
        engine.arm(Fault(point, action, 7))
        outputs = [output async for output in engine.generate(PROMPT, LONG)]
        assert joined(outputs) == (expected, [300, 300])

    survivor.loses(1, use)


def test_an_engine_whose_loop_hangs_is_replaced(survivor: Survivor, expected: list[list[int]]) -> None:
    """Its other threads still tell that it lives, but not that it moves."""

    async def collect(engine: Engine) -> list[RequestOutput]:
        return [output async for output in engine.generate(PROMPT, LONG)]

    async def use(engine: Engine) -> None:
        impatient, first = asyncio.ensure_future(impatience(engine)), engine.process_id
        engine.arm(Fault("engine.step", "hang", 20))
        outputs = asyncio.ensure_future(collect(engine))
        with pytest.raises(EngineUnavailable, match="not moved"):
            while engine.process_id == first:
                engine.check_ready()
                await asyncio.sleep(0.05)
        await impatient
        assert joined(await outputs) == (expected, [300, 300])

    survivor.loses(1, use)


def test_a_request_that_ends_every_engine_fails_and_one_that_only_waited_is_served(
    checkpoint: Path, expected: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    """The second was there at three ends, and in none of the steps: the engine has room for one request at a time."""
    ShortLived.lives = 3

    async def collect(engine: Engine, priority: int) -> list[RequestOutput]:
        return [output async for output in engine.generate(PROMPT, LONG, standing=Standing(priority=priority))]

    async def use(engine: Engine) -> None:
        first, second = (asyncio.ensure_future(collect(engine, priority)) for priority in (0, 1))
        with pytest.raises(EngineError, match="3 times"):
            await first
        assert joined(await second)[0] == expected
        # So is who comes afterwards.
        assert joined(await collect(engine, 0))[0] == expected
        assert engine.load.restarts == 3

    with_engine(checkpoint, use, AT_ONCE, ShortLived, max_num_seqs=2)
    assert sum("exit status 70" in record.message for record in caplog.records) == 3


def test_who_leaves_in_the_moment_in_which_an_engine_is_ready_is_gone() -> None:
    async def main() -> None:
        engine = Engine(no_process, None)  # type: ignore[arg-type]
        waiting = asyncio.ensure_future(engine._wait_until_served())
        await asyncio.sleep(0)
        engine._serves.set()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async def no_process() -> EngineProcess:
        raise AssertionError("nothing is started")

    asyncio.run(main())


def test_an_engine_that_a_signal_has_stopped_is_replaced_however_long_it_may_hang(
    survivor: Survivor, expected: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    async def use(engine: Engine) -> None:
        usual, first = engine._patience, engine.process_id
        engine._patience = msgspec.structs.replace(usual, look_seconds=0.1, hang_seconds=PATIENCE)
        outputs: list[RequestOutput] = []
        async for output in engine.generate(PROMPT, LONG):
            outputs.append(output)
            if len(outputs) == 3:
                os.kill(first, signal.SIGSTOP)
        engine._patience = usual
        assert joined(outputs) == (expected, [300, 300])
        await reached(lambda: engine.process_id != first)

    survivor.loses(1, use)
    assert "The engine was stopped by a signal, and has been killed." in caplog.text


async def _stopped_at_once(checkpoint: Path) -> None:
    command = engine_command(sys.executable)
    engine = await Engine.start(lambda: EngineProcess.start(command, lambda done, total: None))
    try:
        os.kill(engine.process_id, signal.SIGSTOP)
        prepared = prepare(EngineOptions.of(model=str(checkpoint), threads=1, max_model_len=128), api_beside=True)
        engine.configure(prepared.config)
        await engine.ready(prepared.model_info(None), None)
    finally:
        await engine.close()


def test_an_engine_that_is_stopped_at_its_first_start_says_so(checkpoint: Path) -> None:
    with pytest.raises(EngineUnavailable, match="stopped by a signal"):
        asyncio.run(patiently(_stopped_at_once(checkpoint)))


def test_an_idle_engine_counts_as_ready_and_a_closed_one_says_so(checkpoint: Path) -> None:
    async def use(engine: Engine) -> None:
        # Each beat makes the watch begin anew.
        before = engine._process.beats
        await reached(lambda: engine._process.beats >= before + 3)
        engine.check_ready()
        assert engine.load.restarts == 0
        stream = engine.generate(PROMPT, LONG)
        await anext(stream)
        await engine.close()
        with pytest.raises(EngineUnavailable, match="stopped"):
            async for _ in stream:
                pass

    with_engine(checkpoint, use, Patience(unready_seconds=PATIENCE, hang_seconds=PATIENCE))


async def _longest_served(checkpoint: Path) -> int:
    """Of an engine whose model was told to be for longer contexts than the engine has room for."""
    command = engine_command(sys.executable)
    engine = await Engine.start(lambda: EngineProcess.start(command, lambda done, total: None))
    try:
        prepared = prepare(EngineOptions.of(model=str(checkpoint), threads=1, max_model_len=128), api_beside=True)
        engine.configure(prepared.config)
        await engine.ready(msgspec.structs.replace(prepared.model_info(None), max_model_len=512), None)
        return engine.model.max_model_len
    finally:
        await engine.close()


def test_the_engine_says_how_long_a_context_may_be(checkpoint: Path) -> None:
    assert asyncio.run(_longest_served(checkpoint)) == 128
