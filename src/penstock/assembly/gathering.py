"""The engine's machine waits for the others whose processes compute with it."""

import contextlib
import hashlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from penstock import __version__
from penstock.core.config import EngineConfig, MachinesConfig, ModelConfig, RanksConfig
from penstock.core.errors import ConfigurationError, EngineError
from penstock.engine.messages import pack_config
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fingerprint import fingerprint
from penstock.parallel.machines import (
    Connecting,
    Joining,
    Listener,
    Refused,
    Welcome,
    read_beats,
    send,
    welcome,
)
from penstock.parallel.silence import LOOK_SECONDS

# For how long machines wait for each other.
PATIENCE_SECONDS = 600.0
logger = logging.getLogger("penstock.engine")


@dataclass(slots=True, eq=False)
class Gathered:
    """Connections to ranks on other machines.

    Attributes:
        controls: by which each of those ranks is told what to do.
        values: by which ranks of this machine get what the stage before has made.
        machines: to the process of each other machine.
        beats: how often each rank there has shown that it is not stopped, and what operations it had computed then, as
            far as is known.
    """

    controls: dict[int, socket.socket] = field(default_factory=dict)
    values: dict[int, socket.socket] = field(default_factory=dict)
    machines: dict[int, socket.socket] = field(default_factory=dict)
    beats: dict[int, tuple[int, int]] = field(default_factory=dict)

    def begin(self) -> None:
        """Listen to their beats from now on."""
        for end in self.machines.values():
            threading.Thread(target=_listen, args=(end, self.beats), daemon=True).start()

    def close(self) -> None:
        """Close all that were not handed on."""
        for ends in (self.controls, self.values, self.machines):
            for end in ends.values():
                end.close()


def _listen(end: socket.socket, beats: dict[int, tuple[int, int]]) -> None:
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
    secret = secret_of(machines.secret_file)
    listener = Listener(machines.host, machines.port, secret, __version__)
    found = Gathered()
    try:
        waiting = Waiting(listener, ranks, alive, patience)
        joined = waiting.machines(_beside(lambda: weights_of(config.model, config.threads), alive))
        found.machines = {number: end for number, (_, end) in joined.items()}
        for number, (joining, end) in joined.items():
            host, port = "", listener.port
            if number > 1:
                before, next_end = joined[number - 1]
                host, port = next_end.getpeername()[0], before.port
            welcome(end, joining, Welcome(pack_config(config), host, port), secret)
        waiting.connections(found)
        found.begin()
        return found
    except OSError as error:
        found.close()
        raise EngineError(f"A machine has gone while others were waited for ({error}).") from error
    except BaseException:
        found.close()
        raise
    finally:
        listener.close()


def _beside(work: Callable[[], bytes], alive: Callable[[], None]) -> bytes:
    """What comes of something that may take long; `alive` is called meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(work)
        while not wait([found], LOOK_SECONDS).done:
            alive()
        return found.result()


class Waiting:
    """Waits for who calls, for some seconds in all."""

    def __init__(
        self, listener: Listener, ranks: RanksConfig, alive: Callable[[], None], patience: float = PATIENCE_SECONDS
    ) -> None:
        self._listener, self._ranks, self._alive = listener, ranks, alive
        self._until = time.monotonic() + patience

    def _next(self, missing: str) -> tuple[Joining | Connecting, socket.socket] | None:
        """Who has come; None for now. Raises EngineError once it has taken too long."""
        if time.monotonic() > self._until:
            raise EngineError(f"{missing} did not come; start `penstock join` on each machine.")
        self._alive()
        return self._listener.next(LOOK_SECONDS)

    def machines(self, weights: bytes) -> dict[int, tuple[Joining, socket.socket]]:
        """All other machines, by number. Where one does not fit, all that have come are refused with it."""
        joined: dict[int, tuple[Joining, socket.socket]] = {}
        come: list[socket.socket] = []
        try:
            while missing := self._missing(joined):
                next_one = self._next(f"Machine {', '.join(map(str, missing))} of {self._ranks.num_machines}")
                if next_one is None:
                    continue
                caller, end = next_one
                come.append(end)
                if isinstance(caller, Connecting):
                    end.close()
                    continue
                if (why := self._unfit(caller, weights)) is not None:
                    raise EngineError(why)
                if caller.machine in joined:
                    self._refuse([end], f"Machine {caller.machine} has come twice; give each a --machine of its own.")
                    continue
                joined[caller.machine] = caller, end
                logger.info("machine %d has come from %s", caller.machine, end.getpeername()[0])
        except EngineError as error:
            self._refuse(come, error.message)
            raise
        return joined

    def _missing(self, joined: dict[int, tuple[Joining, socket.socket]]) -> list[int]:
        """The numbers of those that are not there; of those that have gone, nothing is kept."""
        for number, (_, end) in list(joined.items()):
            if not _is_there(end):
                joined.pop(number)[1].close()
        return [number for number in range(1, self._ranks.num_machines) if number not in joined]

    def _refuse(self, ends: Sequence[socket.socket], why: str) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                send(end, Refused(why))
            end.close()

    def _unfit(self, joining: Joining, weights: bytes) -> str | None:
        number = joining.machine
        if not 0 < number < self._ranks.num_machines:
            return f"Machine {number} has come, but --machines is {self._ranks.num_machines}; take --machine from 1 on."
        if joining.weights != weights:
            return f"Machine {number} has other weights than the first machine; give it the same files."
        return None

    def connections(self, found: Gathered) -> None:
        """Wait until each rank elsewhere can be told what to do, and values come from elsewhere.

        Raises EngineError where a machine has gone meanwhile.
        """
        ranks = self._ranks
        own = ranks.ranks_of(0)
        wanted = {("control", rank) for rank in range(len(own), ranks.size)}
        wanted |= {("values", rank) for rank in own if rank + ranks.together >= len(own)}
        while wanted:
            names = sorted({rank if purpose == "control" else rank + ranks.together for purpose, rank in wanted})
            come = self._next(f"Connections of ranks {', '.join(map(str, names))}")
            for number, end in found.machines.items():
                if not _is_there(end):
                    raise EngineError(f"Machine {number} has gone before all were connected; its output says why.")
            if come is None:
                continue
            caller, end = come
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
