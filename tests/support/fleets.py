"""A fleet that `penstock fleet up` started from a file, and clients that ask it all the time."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from penstock.cli.remote import over_socket
from penstock.fleet.control import SOCKET
from penstock.fleet.status import FleetStatus, ReplicaStatus
from support.waiting import PATIENCE, SELDOM, until

PENSTOCK = (sys.executable, "-m", "penstock.cli.main")
PROMPTS = ("The rain", "An old house by the sea", "Nobody came, and the lamp")


class Fleet:
    """One that runs.

    Attributes:
        file: its description.
        process: of `penstock fleet up`.
    """

    def __init__(self, file: Path, environment: dict[str, str], process: "subprocess.Popen[bytes]") -> None:
        self.file, self.process = file, process
        self._environment = environment

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run `penstock fleet ARGUMENTS…` to its end."""
        command = [*PENSTOCK, "fleet", *arguments]
        return subprocess.run(
            command, env=self._environment, cwd=self.file.parent, capture_output=True, text=True, timeout=PATIENCE
        )

    @property
    def status(self) -> FleetStatus:
        """What it tells of itself, asked as `penstock fleet status` asks, without a process for each look."""
        socket = Path(self._environment["PENSTOCK_DATA"]) / "fleets" / self.file.stem / SOCKET
        return over_socket(str(socket), "GET", "/status", FleetStatus)

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        """Those that it tells of."""
        return self.status.replicas

    def until_settled(self) -> FleetStatus:
        """Wait until all is as it is described."""
        found: list[FleetStatus] = []

        def settled() -> bool:
            found[:] = [self.status]
            return found[0].settled

        until(settled, lambda: f"{found} {self.log()}", pause=SELDOM)
        return found[0]

    def log(self) -> str:
        """What it has printed."""
        return (self.file.parent / "up.log").read_text()


def pid_of(where: str) -> int:
    """The process, of what a status says of it; 0 where there is none yet."""
    return int(where.split()[1]) if where.startswith("pid ") else 0


@contextlib.contextmanager
def fleet_up(folder: Path, text: str, on: str = "local") -> Iterator[Fleet]:
    """Start the fleet that a text describes, at a place; it has to have ended in order when the block does."""
    file = folder / "fleet.toml"
    file.write_text(text)
    environment = {**os.environ, "PENSTOCK_DATA": str(folder / "data")}
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [*PENSTOCK, "fleet", "up", "--on", on],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    fleet = Fleet(file, environment, process)
    try:
        until(lambda: " serves " in fleet.log() or process.poll() is not None, fleet.log, pause=SELDOM)
        assert process.poll() is None, fleet.log()
        yield fleet
        assert fleet.command("down").returncode == 0
        assert process.wait(PATIENCE) == 0, fleet.log()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


class Clients:
    """Some that ask for streams all the time, while the block runs; each prompt has one answer, whatever happens.

    Attributes:
        wrong: what was not answered as it should be.
    """

    def __init__(self, url: str, model: str, count: int) -> None:
        self._url, self._model = url, model
        with httpx.Client(timeout=PATIENCE) as client:
            self._expected = {prompt: self._ask(client, prompt) for prompt in PROMPTS}
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(count)]
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._answered = 0
        self.wrong: list[str] = []

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def until_more(self, count: int) -> None:
        """Wait until so many more were answered."""
        wanted = self._answered + count
        until(lambda: self._answered >= wanted or self.wrong, pause=SELDOM)

    def _work(self, number: int) -> None:
        # Half of them keep their connections.
        with httpx.Client(timeout=PATIENCE) as kept:
            turn = number
            while not self._over.is_set():
                prompt = PROMPTS[turn % len(PROMPTS)]
                turn += 1
                with contextlib.ExitStack() as open_:
                    client = kept if number % 2 else open_.enter_context(httpx.Client(timeout=PATIENCE))
                    self._heard(prompt, client)

    def _heard(self, prompt: str, client: httpx.Client) -> None:
        try:
            said = self._ask(client, prompt)
        except (httpx.HTTPError, AssertionError) as error:
            said = repr(error)
        with self._lock:
            self._answered += 1
            if said != self._expected[prompt]:
                self.wrong.append(f"{prompt!r}: {said!r} instead of {self._expected[prompt]!r}")

    def _ask(self, client: httpx.Client, prompt: str) -> str:
        """The text of a stream, with how it ended."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": 40, "ignore_eos": True, "stream": True, "seed": 5}
        text, ended = "", "cut off"
        with client.stream("POST", f"{self._url}/v1/completions", json=body) as response:
            assert response.status_code == 200, response.read().decode()
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    text += event["choices"][0]["text"]
                    ended = event["choices"][0]["finish_reason"] or ended
        return f"{text} [{ended}]"
