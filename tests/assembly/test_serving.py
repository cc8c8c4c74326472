"""A server as a program starts it, and what its start settles."""

import asyncio
import contextlib
import gc
import os
import signal
import socket

import httpx
import pytest

from penstock.access.limits import AdmissionOptions
from penstock.assembly import serving as serving_module
from penstock.assembly.replica import Started
from penstock.assembly.served_model import ServedModel, measured_limits, settled
from penstock.assembly.server_options import ServeOptions
from penstock.assembly.serving import Unwatched, serve_model
from penstock.configuration.options import EngineOptions
from penstock.core.config import CacheConfig, EngineConfig, ModelConfig, PoolWish, Reason, SchedulerConfig
from penstock.core.errors import ConfigurationError
from penstock.core.kv import LayerKV, build_kv_spec
from penstock.engine.messages import Ready
from penstock.scheduler.admission import Limits
from penstock.server.serve import Server, bind
from support.waiting import patiently, reached

HAIKU = EngineOptions.of("haiku", threads=1, max_model_len=64)


class Told(Unwatched):
    """Keeps what is told of a start."""

    def __init__(self) -> None:
        self.started: asyncio.Future[Started] = asyncio.get_running_loop().create_future()

    def serves(self, started: Started) -> None:
        self.started.set_result(started)


async def start_ask_and_stop() -> tuple[Started, httpx.Response]:
    """Start a server in this program, send one request, and end the server."""
    told = Told()
    serving = asyncio.ensure_future(serve_model(HAIKU, ServeOptions(port=0, data_dir="off"), watcher=told))
    await asyncio.wait((serving, told.started), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    started = told.started.result()
    host, port = started.address
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
        body = {"model": "haiku", "prompt": "rain", "max_tokens": 2}
        answer = await client.post("/v1/completions", json=body)
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"http://{host}:{port}/health")
    return started, answer


def test_a_program_starts_a_server_and_ends_it() -> None:
    started, answer = asyncio.run(start_ask_and_stop())
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 2
    (model,) = started.models
    assert model.name == "haiku" and not started.encrypted
    assert {"dtype", "max model len", "chat template"} <= {reason.setting for reason in model.told}
    assert {reason.setting for reason in model.told} < {reason.setting for reason in model.reasons}
    assert "max connections" in {reason.setting for reason in started.reasons}
    assert any(remark.startswith("data dir: off") for remark in started.remarks)


class Loading(Unwatched):
    """Says when the model begins to load."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    def loading(self) -> contextlib.AbstractContextManager[object]:
        self.begun.set()
        return contextlib.nullcontext()


async def cancel_while_it_loads() -> None:
    loading = Loading()
    serving = asyncio.ensure_future(serve_model(HAIKU, ServeOptions(port=0, data_dir="off"), watcher=loading))
    begun = asyncio.ensure_future(loading.begun.wait())
    await asyncio.wait((serving, begun), return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_start_that_is_cancelled_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(cancel_while_it_loads())
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def stop_as_the_model_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's port is closed, and it has not ended, when the model is there."""
    listeners: list[socket.socket] = []
    wait, shut_down = ServedModel.wait, Server.shutdown

    def kept(host: str, port: int) -> socket.socket:
        listeners.append(bind(host, port))
        return listeners[0]

    async def held(server: Server, sockets: list[socket.socket] | None = None) -> None:
        await shut_down(server, sockets)
        await ends.wait()

    async def stopped(model: ServedModel) -> None:
        await wait(model)
        os.kill(os.getpid(), signal.SIGTERM)
        await reached(lambda: listeners[0].fileno() < 0)
        there.set()

    there, ends, told = asyncio.Event(), asyncio.Event(), Told()
    monkeypatch.setattr(serving_module, "bind", kept)
    monkeypatch.setattr(Server, "shutdown", held)
    monkeypatch.setattr(ServedModel, "wait", stopped)
    serving = asyncio.ensure_future(serve_model(HAIKU, ServeOptions(port=0, data_dir="off"), watcher=told))
    await patiently(there.wait())
    # It has taken note of that by now.
    await asyncio.sleep(0.01)
    ends.set()
    await patiently(serving)
    assert not told.started.done()


def test_a_server_that_is_stopped_as_its_model_is_there_ends_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(stop_as_the_model_is_there(monkeypatch))


def test_what_a_server_cannot_be_ends_its_start() -> None:
    serving = ServeOptions(port=0, data_dir="off", admission=AdmissionOptions(max_queued_requests=0))
    with pytest.raises(ConfigurationError, match="--max-queued-requests"):
        asyncio.run(serve_model(HAIKU, serving))


def test_the_queue_follows_the_pool_that_was_measured() -> None:
    spec = build_kv_spec((LayerKV(1, 8),), "float32")
    config = EngineConfig(
        model=ModelConfig("m", "m", "float32"),
        cache=CacheConfig(spec, 1000, wish=PoolWish(None, 4096, 4096)),
        scheduler=SchedulerConfig(),
        threads=1,
    )
    ready = Ready(1, Limits(spec, 50, 1000, 8), 9, [], [])
    limits, reasons = measured_limits(AdmissionOptions(), config, ready)
    assert limits.bounds.tokens == 4 * 50 * spec.block_size
    assert f"max queued tokens: {4 * 50 * spec.block_size} (4 times what the KV pool holds" in str(reasons[1])
    assert measured_limits(AdmissionOptions(max_queued_tokens=9), config, ready)[0].bounds.tokens == 9


def test_what_the_engine_measured_takes_the_place_of_estimates() -> None:
    told = [Reason("dtype", "bfloat16", "own"), Reason("max model len", "900", "estimated")]
    found = Reason("max model len", "1000", "what the KV pool holds")
    ready = Ready(1, Limits(build_kv_spec((LayerKV(1, 8),), "float32"), 9, 1000, 8), 9, [], [], settled=[found])
    assert settled(told, ready) == [told[0], found]
