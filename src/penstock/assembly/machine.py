"""A machine beside the engine's: it starts its ranks, and again when the engine has ended and begins anew."""

import contextlib
import select
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from penstock import __version__
from penstock.assembly.gathering import secret_of, weights_of
from penstock.assembly.links import Links
from penstock.core.config import LoadFormat, ModelConfig
from penstock.core.errors import ConfigurationError, EngineError
from penstock.engine.messages import unpack_config
from penstock.kernels.cpu.native import OBSTACLE
from penstock.loading.cache_folder import default_folder
from penstock.loading.hub import resolve_model
from penstock.parallel.machines import (
    Beats,
    Caller,
    Connecting,
    Joining,
    Listener,
    Refused,
    Welcome,
    call,
    read_answer,
    send,
)
from penstock.parallel.silence import LOOK_SECONDS

# For how long the engine is called before it counts as gone.
PATIENCE_SECONDS = 600.0
_RETRY_SECONDS = 1.0


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

    def call(self, host: str, port: int, asked: Callable[[bytes], Caller]) -> socket.socket:
        """Call a listener of the engine's machines."""
        return call(host, port, self.secret, __version__, asked, PATIENCE_SECONDS)


def join_engine(
    address: tuple[str, int],
    model: str,
    load_format: LoadFormat,
    number: int,
    secret_file: str | None,
    say: Callable[[str], None],
) -> NoReturn:
    """Compute with the engine at an address, and with the next one there, until none has answered for a while.

    `say` tells users what happens. Raises ConfigurationError where the engine refuses this machine, EngineError where
    none answers.
    """
    if OBSTACLE is not None:
        raise ConfigurationError(f"penstock join needs the native kernels ({OBSTACLE}).")
    path = str(resolve_model(model))
    secret = secret_of(secret_file)
    say(f"Reading the files of {path}, to compare them with the engine's.")
    weights = weights_of(ModelConfig(path, path, "auto", load_format, packed_cache=str(default_folder())), threads=1)
    engine = Engine(*address, secret, number, path, weights)
    say(f"Machine {number} calls the engine at {engine.host}:{engine.port}.")
    while True:
        listener = Listener("", 0, engine.secret, __version__)
        try:
            _compute(engine, listener, _called(engine, listener.port), say)
        finally:
            listener.close()
        say("The engine has ended, or another machine; waiting for the next one.")


def _called(engine: Engine, port: int) -> socket.socket:
    """A connection to the engine, which may not be there yet."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return engine.call(
                engine.host,
                engine.port,
                lambda proof: Joining(proof, __version__, engine.number, port, engine.weights),
            )
        except OSError as error:
            if time.monotonic() > until:
                raise EngineError(
                    f"No engine answers at {engine.host}:{engine.port} ({error}); start `penstock serve` with "
                    "--machines there."
                ) from error
        time.sleep(_RETRY_SECONDS)


def _compute(engine: Engine, listener: Listener, end: socket.socket, say: Callable[[str], None]) -> None:
    """Start the ranks of this machine, and wait until one of them, or the engine, has ended."""
    with contextlib.ExitStack() as opened:
        opened.enter_context(end)
        try:
            answer = read_answer(end)
        except (EOFError, OSError):
            return
        if isinstance(answer, Refused):
            raise ConfigurationError(answer.message)
        config = unpack_config(answer.config)
        ranks = config.ranks
        assert ranks is not None, "there are several machines"
        links = Links(ranks, opened, engine.number)
        try:
            _connect(engine, listener, answer, links, ranks.together)
            controls = {rank: _control(engine, rank) for rank in links.ranks}
        except (OSError, EngineError):
            # One of the others has ended meanwhile.
            return
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank, control in controls.items():
                with control:
                    processes.append(links.start(rank, control, engine.model))
            names = ", ".join(map(str, links.ranks))
            say(f"Of {ranks.size} ranks, this machine has {names} for the engine at {engine.host}:{engine.port}.")
            _tell_beats(end, links, processes)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()


def _control(engine: Engine, rank: int) -> socket.socket:
    return engine.call(engine.host, engine.port, lambda proof: Connecting(proof, rank, "control"))


def _connect(engine: Engine, listener: Listener, welcome: Welcome, links: Links, split: int) -> None:
    """Connect stages that are on other machines: call the next machine, and wait for the one before."""
    host, port = welcome.next_host or engine.host, welcome.next_port
    for rank in sorted(links.without_behind):
        behind = rank - split
        links.go_to(rank, engine.call(host, port, lambda proof, behind=behind: Connecting(proof, behind, "values")))  # type: ignore[misc]
    looks = int(PATIENCE_SECONDS / LOOK_SECONDS)
    while missing := links.without_before:
        come = listener.next(LOOK_SECONDS)
        looks -= 1
        if looks < 0:
            raise EngineError(f"The stage before ranks {', '.join(map(str, sorted(missing)))} did not come.")
        if come is None:
            continue
        caller, end = come
        if isinstance(caller, Connecting) and caller.purpose == "values" and caller.rank in missing:
            links.come_from(caller.rank, end)
        else:
            end.close()


def _tell_beats(end: socket.socket, links: Links, processes: "list[subprocess.Popen[bytes]]") -> None:
    """Tell the engine which ranks show that they are not stopped, until it or one of them has ended."""
    poll = select.poll()
    poll.register(end, select.POLLIN | select.POLLRDHUP)
    signs = links.signs(links.ranks[0])
    while all(process.poll() is None for process in processes):
        if poll.poll(LOOK_SECONDS / 2 * 1000):
            return
        try:
            send(end, Beats({rank: signs.beats(rank) for rank in links.ranks}))
        except OSError:
            return
