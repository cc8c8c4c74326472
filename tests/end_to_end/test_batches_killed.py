"""Batches outlive the server, however it ends: with a scripted engine killed at many moments, and the whole product."""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import select, text

from penstock.database.connection import Database
from penstock.database.tables import batch_results
from penstock.storage.directory import DataDirectory
from support.databases import named_database
from support.http_server import free_port
from support.live_server import RunningServer, serving
from support.postgres import PostgresServer
from support.waiting import PATIENCE, SELDOM, until

ROOT = Path(__file__).resolve().parents[2]
LINES = 1000

# Every line that the engine has finished is appended to a file, so that what was computed twice can be seen. It
# finishes no more than it is told to.
PROGRAM = textwrap.dedent(
    """
    import asyncio, os, sys
    from pathlib import Path
    from support.scripted_engine import ScriptedEngine
    from penstock.batches import runner
    from penstock.server.app import create_app
    from penstock.server.serve import bind, run_loop, serve
    from penstock.storage.store import Store

    # What another has left is waited for no longer than until its time is over.
    runner._LOOK_SECONDS = 0.1
    folder = Path(sys.argv[2])
    computed = os.open(folder.parent / "computed", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    engine = ScriptedEngine(None, [5, 6])
    left = int(sys.argv[3])

    async def slow(call):
        global left
        await asyncio.sleep(0.004)
        if call.outputs == 1:
            if left == 0:
                await asyncio.Event().wait()
            left -= 1
            os.write(computed, b"%d\\n" % call.prompt[0])

    engine.before = slow
    shared = sys.argv[4:]
    store = Store.share(shared[0], "model scripted") if shared else Store.open(folder / "data")
    listener = bind("127.0.0.1", int(sys.argv[1]))
    run_loop(serve(create_app(engine, None, store=store), listener, on_started=lambda: print("ready", flush=True)))
    store.close()
    """
)


@contextlib.contextmanager
def started(folder: Path, lines: int, *database: str) -> Iterator[tuple["subprocess.Popen[str]", httpx.Client]]:
    """A server whose engine finishes that number of lines, and what asks it; with a data directory, or a database."""
    port = free_port()
    path = f"{ROOT / 'src'}:{ROOT / 'tests'}:{os.environ.get('PYTHONPATH', '')}"
    # PostgreSQL tells by it whose connection is whose.
    environment = {**os.environ, "PYTHONPATH": path, "PGAPPNAME": folder.parent.name}
    command = [sys.executable, "-c", PROGRAM, str(port), str(folder), str(lines), *database]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as http,
    ):
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process, http
        finally:
            process.kill()


def create(http: httpx.Client) -> str:
    lines = [
        {"custom_id": f"n{n}", "method": "POST", "url": "/v1/completions", "body": {"prompt": [n]}}
        for n in range(LINES)
    ]
    contents = "\n".join(map(json.dumps, lines)).encode()
    file = http.post("/v1/files", files={"file": ("in.jsonl", contents)}, data={"purpose": "batch"}).json()
    body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    return str(http.post("/v1/batches", json=body).json()["id"])


def kept(folder: Path) -> set[int]:
    """The lines that had a result when the server was killed, as numbers from 0."""
    with contextlib.closing(sqlite3.connect(folder / "data" / "files.sqlite")) as connection:
        return {number - 1 for (number,) in connection.execute("SELECT line FROM batch_results")}


def computed(folder: Path) -> list[int]:
    path = folder / "computed"
    return [int(text) for text in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_no_line_is_lost_or_doubled_whenever_the_server_ends(
    tmp_path: Path, end: signal.Signals, pytestconfig: pytest.Config
) -> None:
    rounds = 6 if pytestconfig.getoption("slow") else 3
    folder = tmp_path / "server"
    folder.mkdir()
    rng = random.Random(end)
    with started(folder, LINES) as (process, http):
        batch_id = create(http)
        os.kill(process.pid, end)
    before = 0
    for number in range(1, rounds + 1):
        done, seen = kept(folder), len(computed(tmp_path))
        # It is ended while it goes on, or has just come to a halt, and at last when nothing is left to do.
        last = number == rounds
        moment = seen + rng.randrange(LINES // rounds)
        with started(folder, LINES if last else moment - seen + 64) as (process, http):
            while True:
                batch: dict[str, Any] = http.get(f"/v1/batches/{batch_id}").json()
                # Counts never fall, and never promise what is not kept.
                assert batch["request_counts"]["completed"] >= max(before, len(done))
                before = batch["request_counts"]["completed"]
                if batch["status"] == "completed" or (not last and len(computed(tmp_path)) >= moment):
                    break
                time.sleep(0.005)
            assert (batch["status"] == "completed") is last
            if last:
                output = http.get(f"/v1/files/{batch['output_file_id']}/content").text
            os.kill(process.pid, end)
            process.wait(PATIENCE)
        assert before <= len(kept(folder)) or not kept(folder)
        # What had a result is not computed again.
        assert not done & set(computed(tmp_path)[seen:])
    assert [json.loads(line)["custom_id"] for line in output.splitlines()] == [f"n{n}" for n in range(LINES)]
    assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    # Only what was under way, or had just come out of the engine, was computed twice.
    again = sum(count - 1 for count in Counter(computed(tmp_path)).values())
    assert again <= 48 * rounds


def test_another_server_goes_on_with_the_batch_of_one_that_was_killed(postgres: PostgresServer, tmp_path: Path) -> None:
    database_url = named_database(postgres)
    folders = [tmp_path / name / "server" for name in ("one", "two")]
    for folder in folders:
        folder.mkdir(parents=True)
    with (
        contextlib.closing(Database.open(database_url)) as database,
        started(folders[0], 400, database_url) as (process, first),
        contextlib.ExitStack() as later,
    ):
        batch_id = create(first)
        until(lambda: len(computed(tmp_path / "one")) >= 300)
        # Of two, either could begin with it.
        _, second = later.enter_context(started(folders[1], LINES, database_url))
        process.kill()
        process.wait()
        done = results(database, "one")
        assert len(done) > 200
        # It is the other's when its time is over, and is seen at it until then.
        batch: dict[str, Any] = second.get(f"/v1/batches/{batch_id}").json()
        completed_then = batch["request_counts"]["completed"]
        # Where its time was not over yet, however slow the machine is.
        if not computed(tmp_path / "two"):
            assert batch["status"] == "in_progress" and completed_then == len(done)
        assert completed_then >= len(done)
        until(lambda: second.get(f"/v1/batches/{batch_id}").json()["status"] == "completed", pause=SELDOM)
        batch = second.get(f"/v1/batches/{batch_id}").json()
        output = second.get(f"/v1/files/{batch['output_file_id']}/content").text
    assert [json.loads(line)["custom_id"] for line in output.splitlines()] == [f"n{n}" for n in range(LINES)]
    assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    # What had a result is not computed again, and everything else is, once.
    assert sorted(computed(tmp_path / "two")) == sorted(set(range(LINES)) - done)


def results(database: Database, killed: str) -> set[int]:
    """The lines that have a result, as numbers from 0, once nothing that the killed server began is under way."""

    def connections() -> int:
        with database.begin() as connection:
            query = text("SELECT count(*) FROM pg_stat_activity WHERE application_name = :name")
            return int(connection.scalar(query, {"name": killed}) or 0)

    until(lambda: not connections())
    with database.begin() as connection:
        return {number - 1 for number in connection.scalars(select(batch_results.c.line))}


@pytest.mark.slow
def test_servers_that_are_killed_in_turn_lose_and_double_nothing(postgres: PostgresServer, tmp_path: Path) -> None:
    """Of two with one database, one is killed at a random moment, again and again, and comes back."""
    url, rng = named_database(postgres), random.Random(7)
    for name in ("one", "two"):
        (tmp_path / name / "server").mkdir(parents=True)
    with (
        contextlib.closing(Database.open(url)) as database,
        contextlib.ExitStack() as last,
        started(tmp_path / "one" / "server", 0, url) as (first, http),
    ):
        batch_id = create(http)
        first.kill()
        for turn in range(8):
            folder = tmp_path / ("one", "two")[turn % 2]
            before = len(computed(folder))
            with started(folder / "server", rng.randrange(20, 150), url) as (process, http):
                until(lambda folder=folder, before=before: len(computed(folder)) > before + 10, pause=SELDOM)
                process.kill()
                process.wait()
            done = results(database, folder.name)
        already = len(computed(tmp_path / "one"))
        _, http = last.enter_context(started(tmp_path / "one" / "server", LINES, url))
        until(lambda: http.get(f"/v1/batches/{batch_id}").json()["status"] == "completed", pause=SELDOM)
        batch: dict[str, Any] = http.get(f"/v1/batches/{batch_id}").json()
        output = http.get(f"/v1/files/{batch['output_file_id']}/content").text
    assert [json.loads(line)["custom_id"] for line in output.splitlines()] == [f"n{n}" for n in range(LINES)]
    assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    assert not done & set(computed(tmp_path / "one")[already:])


def test_a_second_server_is_refused(served_checkpoint: Path, tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path)
    command = [sys.executable, "-m", "penstock.cli.main", "serve", str(served_checkpoint), "--port", str(free_port())]
    other = subprocess.run(
        [*command, "--data-dir", str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    directory.close()
    assert other.returncode == 2
    assert other.stderr.splitlines()[-1].endswith("stop it, or choose another --data-dir, or off.")
    assert f"process {os.getpid()}" in other.stderr


def test_the_whole_product_goes_on_where_it_was_killed(
    served_checkpoint: Path, tmp_path: Path, client_of: Callable[[RunningServer], openai.OpenAI]
) -> None:
    options = ("--threads", "1", "--data-dir", str(tmp_path))
    with pytest.raises(AssertionError), serving(served_checkpoint, *options) as server:
        client = client_of(server)
        lines: list[dict[str, Any]] = [
            {"custom_id": f"n{number}", "method": "POST", "url": "/v1/chat/completions", "body": {
                "model": "tiny-llama", "messages": [{"role": "user", "content": f"say {number}"}], "max_tokens": 8,
                "temperature": 0, "ignore_eos": True,
            }}
            for number in range(300)
        ]  # fmt: skip
        file = client.files.create(file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
        batch_id = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        ).id
        until(lambda: completed(client, batch_id) >= 30)
        # Others are served meanwhile.
        assert client.completions.create(model="tiny-llama", prompt="one", max_tokens=3).usage is not None
        server.process.kill()
        server.process.wait()
    with serving(served_checkpoint, *options) as server:
        client = client_of(server)
        assert completed(client, batch_id) >= 30
        until(lambda: client.batches.retrieve(batch_id).status == "completed", pause=SELDOM)
        batch = client.batches.retrieve(batch_id)
        assert batch.output_file_id is not None
        answers = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
        assert [answer["custom_id"] for answer in answers] == [f"n{number}" for number in range(300)]
        assert {answer["response"]["body"]["usage"]["completion_tokens"] for answer in answers} == {8}
        # The same request gives the same tokens, in whichever way it came.
        once: Any = server.post("/v1/chat/completions", lines[7]["body"])
        assert once["choices"][0]["message"] == answers[7]["response"]["body"]["choices"][0]["message"]


def completed(client: openai.OpenAI, batch_id: str) -> int:
    counts = client.batches.retrieve(batch_id).request_counts
    return 0 if counts is None else counts.completed
