"""A machine beside the engine's: it starts its ranks, and again when the engine has ended and begins anew."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock import __version__
from penstock.assembly.gathering import PATIENCE_SECONDS, secret_of, weights_of
from penstock.assembly.links import Links
from penstock.core.config import LoadFormat, ModelConfig
from penstock.core.errors import ConfigurationError, EngineError
from penstock.engine.messages import unpack_config
from penstock.kernels.cpu.native import OBSTACLE
from penstock.loading.cache_folder import default_folder
from penstock.loading.hub import resolve_model
from penstock.parallel.machines import (
    NONCE_BYTES,
    Beats,
    Caller,
    Connecting,
    Joining,
    Listener,
    Purpose,
    Refused,
    Welcome,
    call,
    read_answer,
    send,
)
from penstock.parallel.shared import SharedRanks
from penstock.parallel.silence import LOOK_SECONDS

_RETRY_SECONDS = 1.0
_CALL_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Engine:
    """Where the engine listens, and what this machine is to it.

    Attributes:
        number: of this machine; the engine's is 0.
        model: where this machine has the model.
        weights: digest of its files.
    """

    host: str
    port: int
    secret: bytes
    number: int
    model: str
    weights: bytes

    def call(self, host: str, port: int, asked: Callable[[str], Caller]) -> tuple[socket.socket, Caller]:
        """Call a listener of the engine's machines."""
        return call(host, port, self.secret, __version__, asked, _CALL_SECONDS)

    def connect(self, host: str, port: int, rank: int, purpose: Purpose) -> socket.socket:
        """A connection for a rank. Raises EngineError where there cannot be one."""
        try:
            return self.call(host, port, lambda _mine: Connecting(rank, purpose))[0]
        except OSError as error:
            raise EngineError(f"{host}:{port} cannot be reached ({error}).") from error


class _Ending:
    """What SIGTERM does: it ends this machine, but for ranks that compute, which end with their engine.

    An engine that is told to end, too, may have streams to finish before.
    """

    def __init__(self) -> None:
        self.asked = self.computes = False

    def __call__(self, _signal: int, _frame: object) -> None:
        self.asked = True
        if not self.computes:
            raise SystemExit(0)


def join_engine(
    address: tuple[str, int],
    model: str,
    load_format: LoadFormat,
    number: int,
    secret_file: str | None,
    say: Callable[[str], None],
) -> None:
    """Compute with the engine at an address, and with the next one there, until none has answered for a while.

    `say` tells users what happens. Raises ConfigurationError where the engine refuses this machine, EngineError where
    none answers.
    """
    if OBSTACLE is not None:
        raise ConfigurationError(f"penstock join needs the native kernels ({OBSTACLE}).")
    ending = _Ending()
    signal.signal(signal.SIGTERM, ending)
    path = str(resolve_model(model))
    secret = secret_of(secret_file)
    say(f"Reading the files of {path}, to compare them with the engine's.")
    weights = weights_of(ModelConfig(path, path, "auto", load_format, packed_cache=str(default_folder())), threads=1)
    engine = Engine(*address, secret, number, path, weights)
    say(f"Machine {number} calls the engine at {engine.host}:{engine.port}.")
    while not ending.asked:
        why = _compute(engine, *_called(engine), ending, say)
        say(f"{why} Waiting for the next engine.")
        time.sleep(_RETRY_SECONDS)


def _called(engine: Engine) -> tuple[Listener, socket.socket, Joining]:
    """A connection to the engine, which may not be there yet; and where other machines can call this one."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        listeners: list[Listener] = []

        def asked(mine: str, listeners: list[Listener] = listeners) -> Joining:
            # Others reach it where the engine does.
            listeners.append(Listener(mine, 0, engine.secret, __version__))
            return Joining(engine.number, listeners[0].port, engine.weights, os.urandom(NONCE_BYTES))

        try:
            end, said = engine.call(engine.host, engine.port, asked)
        except OSError as error:
            for listener in listeners:
                listener.close()
            if time.monotonic() > until:
                raise EngineError(
                    f"No engine answers at {engine.host}:{engine.port} ({error}); start `penstock serve` with "
                    "--machines there."
                ) from error
            time.sleep(_RETRY_SECONDS)
            continue
        assert isinstance(said, Joining)
        return listeners[0], end, said


def _compute(
    engine: Engine,
    listener: Listener,
    end: socket.socket,
    joining: Joining,
    ending: _Ending,
    say: Callable[[str], None],
) -> str:
    """Start the ranks of this machine, and wait until one of them, or the engine, has ended; says what has."""
    with contextlib.ExitStack() as opened:
        opened.enter_context(end)
        with contextlib.closing(listener):
            try:
                answer = read_answer(end, joining, engine.secret)
            except (EOFError, OSError):
                return "The engine has ended before all machines had come, or has another secret."
            if isinstance(answer, Refused):
                raise ConfigurationError(answer.message)
            config = unpack_config(answer.config)
            ranks = config.ranks
            assert ranks is not None, "there are several machines"
            links = Links(ranks, opened, engine.number)
            try:
                _connect(engine, listener, answer, links, ranks.together)
                controls = {rank: engine.connect(engine.host, engine.port, rank, "control") for rank in links.ranks}
            except EngineError as error:
                return error.message
        ending.computes = True
        try:
            names = ", ".join(map(str, links.ranks))
            say(f"Of {ranks.size} ranks, this machine has {names} for the engine at {engine.host}:{engine.port}.")
            return _computed(end, links, controls, engine.model)
        finally:
            ending.computes = False


def _computed(end: socket.socket, links: Links, controls: dict[int, socket.socket], model: str) -> str:
    """Have the ranks' processes until one of them, or the engine, has ended; what has, as a sentence."""
    processes: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for rank, control in controls.items():
            with control:
                processes[rank] = links.start(rank, control, model)
        return _tell_beats(end, links, processes)
    finally:
        for process in processes.values():
            process.kill()
        for process in processes.values():
            process.wait()


def _connect(engine: Engine, listener: Listener, welcome: Welcome, links: Links, split: int) -> None:
    """Connect stages that are on other machines: call the next machine, and wait for the one before."""
    host, port = welcome.next_host or engine.host, welcome.next_port
    for rank in sorted(links.without_behind):
        links.go_to(rank, engine.connect(host, port, rank - split, "values"))
    until = time.monotonic() + PATIENCE_SECONDS
    while missing := links.without_before:
        come = listener.next(LOOK_SECONDS)
        if time.monotonic() > until:
            names = ", ".join(map(str, sorted(missing)))
            raise EngineError(f"The stage before ranks {names} did not come.")
        if come is None:
            continue
        caller, end = come
        if isinstance(caller, Connecting) and caller.purpose == "values" and caller.rank in missing:
            links.come_from(caller.rank, end)
        else:
            end.close()


def _tell_beats(end: socket.socket, links: Links, processes: "Mapping[int, subprocess.Popen[bytes]]") -> str:
    """Tell the engine which ranks show that they are not stopped, until it or one of them has ended."""
    poll = select.poll()
    poll.register(end, select.POLLIN | select.POLLRDHUP)
    signs = SharedRanks(links.everyone, links.ranks[0], links.size)
    while not poll.poll(LOOK_SECONDS / 2 * 1000):
        for rank, process in processes.items():
            if (status := process.poll()) is not None:
                how = f"signal {-status}" if status < 0 else f"status {status}"
                return f"Rank {rank} has ended with {how}."
        try:
            send(end, Beats({rank: (signs.beats(rank), signs.done(rank)) for rank in links.ranks}))
        except OSError:
            break
    return "The engine has ended."
