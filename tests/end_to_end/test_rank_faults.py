"""Ranks that are killed, stopped or late at named points under streams: right tokens, one new group, nothing left over.

`--rank-faults` says how many are drawn from seeds beside the few that are always tried, 200 in `make soak`. How long
groups took to serve again is printed; no verdict depends on it.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import Any
from urllib.error import HTTPError

import httpx
import psutil
import pytest

from penstock.core.errors import EngineError
from penstock.core.faults import FailAction, Fault
from penstock.engine.stops import MOST_STOPPED
from penstock.kernels.cpu.native import OBSTACLE
from penstock.parallel.silence import LOOK_SECONDS
from support.checkpoints import make
from support.live_server import RunningServer, serving
from support.operator import Operator
from support.ranks import group_of
from support.waiting import PATIENCE, SELDOM, until

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

STREAMS = 32
# How many ends follow each other is the test's doing, and no reason to wait before the next start.
AT_ONCE = "from penstock.engine import watch; watch.RestartPolicy.delay = lambda self, served: 0.0"
# Where it happens, and how often the place is passed before at most; ranks meet several times in a step.
PLACES = {"loading": 0, "step": 60, "meeting": 400, "between": 60, "idle": 0}
POINTS = {
    "loading": "rank.load",
    "step": "rank.step",
    "meeting": "rank.meet",
    "between": "rank.wait",
    "idle": "rank.wait",
}


@dataclass(frozen=True)
class Trial:
    """A fault, and what the server does meanwhile."""

    place: str
    fault: Fault

    @property
    def restarts(self) -> int:
        """How often an engine is started again; while one loads, the one before was ended for that."""
        return (self.place == "loading") + (self.fault.action != "delay")


def _trial(place: str, action: FailAction, rank: int, passes: int = 0) -> Trial:
    return Trial(place, Fault(POINTS[place], action, passes, rank))


def _drawn(seed: int, size: int) -> Trial:
    random = Random(seed)
    place = random.choice(sorted(PLACES))
    action: FailAction = random.choice(("kill", "stop", "delay"))
    return _trial(place, action, random.randrange(size), random.randint(0, PLACES[place]))


class Group:
    """A server whose model several ranks compute, and what it is asked."""

    def __init__(self, server: RunningServer, operator: Operator, log: Path, size: int) -> None:
        self.server, self._operator, self._log, self.size = server, operator, log, size
        self.seconds: dict[str, list[float]] = {}
        self.expected = self.streams()

    def streams(self) -> list[tuple[str, list[Any]]]:
        """The text and the tokens of streams that are all under way at a time."""
        return asyncio.run(self._streams())

    def try_out(self, trial: Trial) -> None:
        """Let it happen, and see that streams get what they would have got, and that one new group serves."""
        before = group_of(self.server.process.pid)
        assert len(before) == self.size
        restarts, mark = self.server.metric("penstock_engine_restarts_total"), self._log.stat().st_size
        if trial.place == "idle":
            self._arm(trial.fault)
            self._happened(trial, mark, before)
        found = asyncio.run(self._streams(lambda: self._begin(trial, mark, before)))
        assert found == self.expected, trial
        self.server.wait_until_ready()
        assert self.server.metric("penstock_engine_restarts_total") == restarts + trial.restarts, trial
        after = group_of(self.server.process.pid)
        assert len(after) == self.size
        gone = before if trial.restarts else []
        until(lambda: not any(each.is_running() for each in gone), lambda: f"{trial} leaves processes")
        if trial.fault.action == "stop":
            who = f"Rank {trial.fault.rank}" if trial.fault.rank else "The engine"
            assert f"{who} was stopped by a signal" in self.said(mark), trial

    def said(self, mark: int) -> str:
        """What the log has beyond this length."""
        with self._log.open("rb") as log:
            log.seek(mark)
            return log.read().decode()

    def _begin(self, trial: Trial, mark: int, before: list[psutil.Process]) -> None:
        """Called once all streams are under way, on a thread."""
        if trial.place == "idle":
            return
        self._arm(trial.fault)
        if trial.place == "loading":
            before[0].kill()
        self._happened(trial, mark, before)

    def _arm(self, fault: Fault) -> None:
        fields = {"point": fault.point, "action": fault.action, "passes": fault.passes, "rank": fault.rank}
        with self._operator.client() as client:
            assert client.post("/fail-points", json=fields).json()["armed"] == fault.point

    def _happened(self, trial: Trial, mark: int, before: list[psutil.Process]) -> None:
        """Until it has happened, and another group serves where one has ended; how long that took is kept."""
        fault = trial.fault
        line = f"fail-point {fault.point} of rank {fault.rank}: {fault.action}"

        begun = time.monotonic()

        def happens() -> bool:
            nonlocal begun
            begun = time.monotonic()
            if PLACES[trial.place]:
                # The streams may have ended before. Where it has just happened, new requests are refused.
                try:
                    self.server.post("/v1/completions", {"prompt": [5], "max_tokens": 8, "ignore_eos": True})
                except HTTPError as error:
                    assert error.code == 503, error
            return line in self.said(mark)

        until(happens, lambda: f"{trial} does not happen", pause=SELDOM)
        if fault.action == "delay":
            return
        until(lambda: not set(before).intersection(group_of(self.server.process.pid)), pause=SELDOM)
        until(self._serves, pause=SELDOM)
        print(f"{trial}: {time.monotonic() - begun:.1f} s", flush=True)
        kind = f"{fault.action} {'while loading' if trial.place == 'loading' else 'otherwise'}"
        self.seconds.setdefault(f"{kind}, rank {'0' if fault.rank == 0 else '1…'}", []).append(time.monotonic() - begun)

    def _serves(self) -> bool:
        return httpx.get(f"{self.server.base}/health/ready", timeout=PATIENCE).status_code == 200

    async def _streams(self, meanwhile: Any = lambda: None) -> list[tuple[str, list[Any]]]:
        limits = httpx.Limits(max_connections=STREAMS)
        async with httpx.AsyncClient(base_url=self.server.base, timeout=PATIENCE, limits=limits) as client:
            begun = [asyncio.Event() for _ in range(STREAMS)]
            tasks = [asyncio.ensure_future(self._stream(client, number, begun[number])) for number in range(STREAMS)]
            await asyncio.gather(*(event.wait() for event in begun))
            await asyncio.gather(asyncio.to_thread(meanwhile), *tasks)
            return [task.result() for task in tasks]

    async def _stream(self, client: httpx.AsyncClient, number: int, begun: asyncio.Event) -> tuple[str, list[Any]]:
        body = {
            "prompt": [7, 9, 30, 31] * 9 + [40 + number] * (1 + number),
            "max_tokens": 150 + number,
            "temperature": 0.9 * (number % 2),
            "seed": number,
            "logprobs": 1,
            "ignore_eos": True,
            "stream": True,
        }
        text, tokens = "", list[Any]()
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                begun.set()
                for choice in event["choices"]:
                    text += choice["text"]
                    tokens += (choice["logprobs"] or {}).get("token_logprobs", [])
        assert len(tokens) == body["max_tokens"]
        return text, tokens


@contextmanager
def _serving(model: Path, folder: Path, size: int, *options: str) -> Iterator[Group]:
    log, socket = folder / "server.log", folder / "socket"
    given = ("--threads", str(size), "--admin-socket", str(socket), *options)
    with serving(model, *given, log=log, program=AT_ONCE) as server:
        group = Group(server, Operator(socket), log, size)
        try:
            yield group
        finally:
            for kind, seconds in sorted(group.seconds.items()):
                middle = quantiles(seconds, n=20) if len(seconds) > 1 else seconds * 19
                found = f"p50 {middle[9]:.1f} s, p95 {middle[18]:.1f} s, most {max(seconds):.1f} s"
                print(f"\n{kind}: {len(seconds)}, {found}")


@pytest.fixture(scope="module")
def ranks(
    served_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Group]:
    """Three ranks in `make soak`; else two, since each is a process that starts anew behind each fault."""
    size = 3 if pytestconfig.getoption("slow") or pytestconfig.getoption("rank_faults") else 2
    options = ("--tensor-parallel-size", str(size))
    with _serving(served_checkpoint, tmp_path_factory.mktemp("ranks"), size, *options) as group:
        yield group


@pytest.mark.parametrize(
    "place, action, passes",
    [("meeting", "kill", 90), ("loading", "kill", 0), ("between", "stop", 9), ("step", "delay", 9)],
)
def test_a_fault_costs_no_stream_a_token(ranks: Group, place: str, action: FailAction, passes: int) -> None:
    ranks.try_out(_trial(place, action, ranks.size - 1, passes))


def test_what_is_stopped_together_with_the_server_goes_on_with_it(ranks: Group) -> None:
    """As by a shell that stops a job and has it go on."""
    restarts, group = ranks.server.metric("penstock_engine_restarts_total"), group_of(ranks.server.process.pid)
    everything = [psutil.Process(ranks.server.process.pid), *group]
    # Each looks at those behind it: it is stopped before them, and goes on after them.
    for each in everything:
        each.suspend()
    until(lambda: all(each.status() == psutil.STATUS_STOPPED for each in everything))
    time.sleep(2 * MOST_STOPPED * LOOK_SECONDS)
    for each in reversed(everything):
        each.resume()
    assert ranks.streams() == ranks.expected
    assert group_of(ranks.server.process.pid) == group
    assert ranks.server.metric("penstock_engine_restarts_total") == restarts


@pytest.fixture
def drawn(pytestconfig: pytest.Config) -> int:
    """Half of the faults that are drawn in all."""
    found = int(pytestconfig.getoption("rank_faults")) // 2
    if not found:
        pytest.skip("none are asked for with --rank-faults")
    return found


def test_drawn_faults_cost_no_stream_a_token(ranks: Group, drawn: int) -> None:
    for seed in range(drawn):
        ranks.try_out(_drawn(seed, ranks.size))


def test_drawn_faults_of_ranks_with_experts(tmp_path_factory: pytest.TempPathFactory, drawn: int) -> None:
    folder = tmp_path_factory.mktemp("experts")
    model = make("qwen3_moe", folder / "model", max_position_embeddings=2048)
    with _serving(model, folder, 2, "--expert-parallel-size", "2") as group:
        for seed in range(1000, 1000 + drawn):
            group.try_out(_drawn(seed, group.size))


@pytest.mark.slow
def test_a_rank_that_is_stopped_at_the_first_start_ends_the_server(served_checkpoint: Path, tmp_path: Path) -> None:
    """Before it has imported anything that takes long, and all the same it is no orphan."""
    log = tmp_path / "log"
    options = ("--tensor-parallel-size", "2", "--threads", "2", "--port", "0")
    command = [sys.executable, "-m", "penstock.cli.main", "serve", str(served_checkpoint), *options]
    environment = {**os.environ, "PENSTOCK_DATA": str(tmp_path)}
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as server:
        until(lambda: len(group_of(server.pid)) == 2, pause=0.0)
        stopped = group_of(server.pid)[1]
        stopped.suspend()
        assert server.wait(PATIENCE) == EngineError.exit_status
        assert "Rank 1 was stopped by a signal while ranks loaded" in log.read_text()
        until(lambda: not stopped.is_running())
