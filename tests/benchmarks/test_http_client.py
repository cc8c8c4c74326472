"""The client that benchmarks share."""

import asyncio
import time
from typing import Any

import pytest
from http_client import Timing, complete, run_load

from penstock.core.errors import QueueFull
from penstock.server.app import create_app
from penstock.text.tokenizer import load_tokenizer
from support.http_server import free_port, running
from support.scripted_engine import Call, ScriptedEngine
from support.tokenizers_made import make_raw, save


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(save(make_raw("byte_level"), tmp_path_factory.mktemp("tokenizer")))


def ask(engine: ScriptedEngine, tokenizer: Any, **body: object) -> Timing:
    with running(create_app(engine, tokenizer)) as url:
        port = int(url.rsplit(":", 1)[1])
        return asyncio.run(complete(port, {"prompt": [5] * 9, **body}, time.monotonic()))


def test_a_stream_is_timed(tokenizer: Any) -> None:
    engine = ScriptedEngine(tokenizer.table, tokenizer.encode("one two three", False))

    async def slow(call: Call) -> None:
        await asyncio.sleep(0.02)

    engine.before = slow
    timing = ask(engine, tokenizer)
    assert (timing.error, timing.status, timing.text) == (None, 200, "one two three")
    assert (timing.output_tokens, timing.prompt_tokens, timing.cached_tokens) == (len(engine.reply), 9, 4)
    # Chunks that a slow client reads at once arrive at once; `bench/load/test_run.py` has the gaps between others.
    assert timing.scheduled <= timing.sent < timing.chunks[0] <= timing.chunks[-1] <= timing.ended
    assert len(timing.chunks) == len(engine.reply)
    assert (
        timing.ttft >= 0.02 and timing.tpot is not None and timing.e2e == pytest.approx(timing.ttft + sum(timing.gaps))
    )


def test_what_fails_is_told(tokenizer: Any) -> None:
    engine = ScriptedEngine(tokenizer.table, tokenizer.encode("one", False))
    assert ask(engine, tokenizer, nothing=1).status == 400

    def refuse(call: Call) -> None:
        raise QueueFull("full", retry_after=7)

    engine.before = refuse
    timing = ask(engine, tokenizer)
    assert (timing.status, timing.retry_after, timing.chunks) == (503, 7, []) and "full" in (timing.error or "")
    timing = asyncio.run(complete(free_port(), {"prompt": [5]}, time.monotonic()))
    assert timing.status == 0 and "refused" in (timing.error or "")


def test_a_load_ends_with_its_first_failure(tokenizer: Any) -> None:
    engine = ScriptedEngine(tokenizer.table, tokenizer.encode("one two", False))
    with running(create_app(engine, tokenizer)) as url:
        port = int(url.rsplit(":", 1)[1])
        timings, seconds = asyncio.run(run_load(port, [{"prompt": [5]}] * 6, concurrency=2))
        assert len(timings) == 6 and seconds >= max(timing.e2e for timing in timings)
        with pytest.raises(SystemExit, match="1 of 2 requests failed"):
            asyncio.run(run_load(port, [{"prompt": [5]}, {"prompt": [5], "n": -1}]))
