"""Replicas and the gateway as processes of this machine."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.fleet import launcher
from penstock.fleet.place import Launch

HOST = "127.0.0.1"
# Of a log, what is looked through for why a process ended.
_TAIL_BYTES = 16 * 1024
# Its supervisor tells when all of it serves.
_OF_SUPERVISOR = "NOTIFY_SOCKET"
# What these say is meant for the gateway; options say it to replicas.
OF_GATEWAYS = ("PENSTOCK_API_KEY", "PENSTOCK_DATABASE", "PENSTOCK_LIMITS_STORE", "PENSTOCK_ANSWER_STORE")
_PENSTOCK = ("-m", "penstock.cli.main")


class Process:
    """A command of `penstock` that runs.

    Attributes:
        url: where it listens.
        log: the file with what it prints.
    """

    def __init__(self, process: asyncio.subprocess.Process, url: str, log: Path, began: int) -> None:
        self._process = process
        self.url, self.log = url, log
        self._began = began

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def where(self) -> str:
        """The process, as a person looks for it."""
        return f"pid {self.pid}"

    async def ended(self) -> str:
        """Wait until it has ended: how it did, in words."""
        status = await self._process.wait()
        if status == 0:
            return "it ended in order"
        how = f"it was ended by {signal.Signals(-status).name}" if status < 0 else f"it ended with status {status}"
        said = self._last_words()
        return f"{how}: {said}" if said else how

    def drain(self) -> None:
        """Have it finish its requests, and end then."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self._send(signal.SIGKILL)

    def _send(self, what: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(what)

    def _last_words(self) -> str:
        """The sentence with which a command of `penstock` fails, or the last line that there is."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._began, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read(_TAIL_BYTES).decode(errors="replace").split("\n")
        except OSError as error:
            return f"its log cannot be read ({error.strerror})"
        said = [line.strip() for line in lines if line.strip()]
        cause = [line.removeprefix("penstock: ") for line in said if line.startswith("penstock: ")]
        return (cause or said or [""])[-1]


async def spawn(
    arguments: Sequence[str],
    *,
    listener: socket.socket | None,
    log: Path,
    environment: Mapping[str, str],
    cores: Sequence[int] = (),
    own: Sequence[str] = (),
) -> Process:
    """Start `penstock ARGUMENTS…`, which ends in order when this process does. Raises OSError.

    Args:
        listener: a TCP socket that listens, which the command takes as `--listen-fd N`; it stays open here, too. None:
            the command does not serve.
        log: the file that what it prints is added to.
        cores: that it runs on; all where there are none.
        own: variables of this process's environment that it has to have, of those that are not inherited.
    """
    places = () if listener is None else (listener.fileno(),)
    command = [sys.executable, *_PENSTOCK, *arguments]
    for place in places:
        command += ["--listen-fd", str(place)]
    tied = [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), ",".join(map(str, cores)), *command]
    left_out = {*OF_GATEWAYS, _OF_SUPERVISOR}.difference(own)
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    with log.open("ab") as output:
        began = output.seek(0, os.SEEK_END)
        process = await asyncio.create_subprocess_exec(
            *tied,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=places,
            env={**inherited, **environment},
            # Ctrl-C in a terminal is for the supervisor, which ends the others in order.
            start_new_session=True,
        )
    return Process(process, "" if listener is None else _url_of(listener), log, began)


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def write_keys(folder: Path, content: str) -> Path:
    """A key file that only this user reads."""
    return write_private(folder / "replicas-keys.toml", content)


def write_private(file: Path, content: str) -> Path:
    """Write a file that only this user reads, and return it."""
    file.touch(mode=0o600)
    file.write_text(content)
    return file


class LocalPlace:
    """Starts replicas on free ports of the loopback interface. They keep what is stored in one database."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the fleet's, where logs, keys and the database are."""
        self._folder = folder
        for name in ("logs", "files"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)

    async def start(self, launch: Launch) -> Process:
        """Start one, which joins the gateway when it serves. Raises OSError."""
        keys = write_keys(self._folder, launch.keys)
        database = self._folder / "files" / "stored.sqlite"
        kept = ["--database", str(database), "--api-key-file", str(keys), "--memory", str(launch.slot.memory)]
        with contextlib.closing(socket.create_server((HOST, 0))) as listener:
            return await spawn(
                ["serve", *launch.arguments, *kept, "--join", launch.gateway],
                listener=listener,
                log=self._folder / "logs" / f"{launch.name}.log",
                environment=launch.environment,
                cores=launch.slot.cores,
            )

    async def close(self) -> None:
        """Nothing is left to be closed: processes end by themselves."""
