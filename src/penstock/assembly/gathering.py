"""The engine's machine waits for the others whose processes compute with it."""

import contextlib
import hashlib
import json
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock import __version__
from penstock.core.config import EngineConfig, MachinesConfig, ModelConfig, RanksConfig
from penstock.core.errors import ConfigurationError, EngineError
from penstock.engine.messages import pack_config
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fingerprint import fingerprint
from penstock.parallel.machines import Connecting, Joining, Listener, Refused, Welcome, read_beats, send
from penstock.parallel.silence import LOOK_SECONDS

# For how long the others are waited for.
PATIENCE_SECONDS = 600.0
logger = logging.getLogger("penstock.engine")


@dataclass(slots=True, eq=False)
class Gathered:
    """Connections to ranks on other machines.

    Attributes:
        controls: by which each of those ranks is told what to do.
        values: by which ranks of this machine get what the stage before has made.
        machines: to the process of each other machine.
        beats: how often each rank there has shown that it is not stopped, as far as is known.
    """

    controls: dict[int, socket.socket] = field(default_factory=dict)
    values: dict[int, socket.socket] = field(default_factory=dict)
    machines: dict[int, socket.socket] = field(default_factory=dict)
    beats: dict[int, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Listen to their beats from now on."""
        for end in self.machines.values():
            threading.Thread(target=_listen, args=(end, self.beats), daemon=True).start()

    def close(self) -> None:
        """Close all that were not handed on."""
        for ends in (self.controls, self.values, self.machines):
            for end in ends.values():
                end.close()


def _listen(end: socket.socket, beats: dict[int, int]) -> None:
    # Where it ends, so do the connections of its ranks, which are watched.
    with contextlib.suppress(EOFError, OSError), end:
        while True:
            beats.update(read_beats(end))


def weights_of(model: ModelConfig, threads: int) -> bytes:
    """A digest of the model's configuration and weights; of the first alone where weights are random."""
    loaded = model.load_format != "dummy"
    checkpoint = open_checkpoint(Path(model.path), weights=loaded)
    found = hashlib.blake2b(json.dumps(checkpoint.config, sort_keys=True, default=repr).encode(), digest_size=32)
    if loaded:
        folder = None if model.packed_cache is None else Path(model.packed_cache)
        found.update(fingerprint(checkpoint, folder, threads))
    return found.digest()


def secret_of(file: str | None) -> bytes:
    """What a file has that machines have in common; nothing without one. Raises ConfigurationError."""
    if file is None:
        return b""
    try:
        found = Path(file).read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"--machines-secret-file {file} cannot be read: {error.strerror}.") from error
    if not found:
        raise ConfigurationError(f"--machines-secret-file {file} is empty; write a secret of 32 characters into it.")
    return found


def gather(
    config: EngineConfig,
    ranks: RanksConfig,
    machines: MachinesConfig,
    alive: Callable[[], None],
    patience: float = PATIENCE_SECONDS,
) -> Gathered:
    """Wait until all machines have come, and all connections are there; `alive` is called again and again.

    Raises ConfigurationError where they cannot be listened for, EngineError where one does not come, or does not fit.
    """
    listener = Listener(machines.host, machines.port, secret_of(machines.secret_file), __version__)
    found = Gathered()
    try:
        weights = weights_of(config.model, config.threads)
        waiting = Waiting(listener, ranks, alive, int(patience / LOOK_SECONDS))
        joined = waiting.machines(weights)
        found.machines = {number: end for number, (_, end) in joined.items()}
        for number, (_, end) in joined.items():
            host, port = "", listener.port
            if number > 1:
                joining, next_end = joined[number - 1]
                host, port = next_end.getpeername()[0], joining.port
            send(end, Welcome(pack_config(config), host, port))
        waiting.connections(found)
        found.begin()
        return found
    except BaseException:
        found.close()
        raise
    finally:
        listener.close()


class Waiting:
    """Waits for who calls, for a number of looks in all."""

    def __init__(self, listener: Listener, ranks: RanksConfig, alive: Callable[[], None], looks: int) -> None:
        self._listener, self._ranks, self._alive, self._looks = listener, ranks, alive, looks

    def _next(self, missing: str) -> tuple[Joining | Connecting, socket.socket]:
        while self._looks > 0:
            come = self._listener.next(LOOK_SECONDS)
            if come is not None:
                return come
            self._looks -= 1
            self._alive()
        raise EngineError(f"{missing} did not come; start `penstock join` on each machine.")

    def machines(self, weights: bytes) -> dict[int, tuple[Joining, socket.socket]]:
        """All other machines, by number. Where one does not fit, all that have come are refused with it."""
        joined: dict[int, tuple[Joining, socket.socket]] = {}
        come: list[socket.socket] = []
        try:
            while missing := [number for number in range(1, self._ranks.num_machines) if number not in joined]:
                caller, end = self._next(f"Machine {', '.join(map(str, missing))} of {self._ranks.num_machines}")
                come.append(end)
                if isinstance(caller, Connecting):
                    end.close()
                    continue
                before = joined.get(caller.machine)
                why = self._unfit(caller, None if before is None else before[1], weights)
                if why is not None:
                    raise EngineError(why)
                if before is not None:
                    before[1].close()
                joined[caller.machine] = caller, end
                logger.info("machine %d has come from %s", caller.machine, end.getpeername()[0])
        except EngineError as error:
            for end in come:
                with contextlib.suppress(OSError):
                    send(end, Refused(error.message))
                end.close()
            raise
        return joined

    def _unfit(self, joining: Joining, before: socket.socket | None, weights: bytes) -> str | None:
        number = joining.machine
        if not 0 < number < self._ranks.num_machines:
            return f"Machine {number} has come, but --machines is {self._ranks.num_machines}; take --machine from 1 on."
        if before is not None and _is_there(before):
            return f"Machine {number} has come twice; give each a --machine of its own."
        if joining.weights != weights:
            return f"Machine {number} has other weights than the first machine; give it the same files."
        return None

    def connections(self, found: Gathered) -> None:
        """Wait until each rank elsewhere can be told what to do, and values come from elsewhere."""
        ranks = self._ranks
        own = ranks.ranks_of(0)
        wanted = {("control", rank) for rank in range(len(own), ranks.size)}
        wanted |= {("values", rank) for rank in own if rank + ranks.together >= len(own)}
        while wanted:
            names = sorted({rank if purpose == "control" else rank + ranks.together for purpose, rank in wanted})
            caller, end = self._next(f"Connections of ranks {', '.join(map(str, names))}")
            if isinstance(caller, Joining) or (caller.purpose, caller.rank) not in wanted:
                end.close()
                continue
            wanted.remove((caller.purpose, caller.rank))
            (found.controls if caller.purpose == "control" else found.values)[caller.rank] = end


def _is_there(end: socket.socket) -> bool:
    """Whether the other side of a connection has not closed it; it has nothing to say yet."""
    end.setblocking(False)
    try:
        return end.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        end.setblocking(True)
