"""The engine process: `python -m penstock.assembly SOCKET RECORD [BESIDE NUMBER]`, for a client with the other ends."""

import time

STARTED = time.monotonic()

import contextlib  # noqa: E402
import gc  # noqa: E402
import importlib  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402

# Where there are fewer cores than threads, what the API process does comes first: it is short, and clients wait for it.
NICENESS = 10
# That of an engine which gives way to others, too: the kernel's last.
LAST_NICENESS = 19


def main() -> int:
    """Serve the socket whose descriptor is the first argument; returns the exit status.

    The second one is the record's descriptor. Where there are engines beside this one, the descriptor of their memory
    and the number of this one follow.
    """
    from penstock.assembly.links import begin
    from penstock.core.config import EngineConfig
    from penstock.engine.beside import GivingWay, Leading, attach
    from penstock.engine.ends import die_with_parent
    from penstock.engine.record import Record
    from penstock.engine.worker import BuiltEngine, Connection, run_worker
    from penstock.runtime.threads import limit_spinning

    # The client decides when the engine ends; an interrupt that is meant for it must not reach the engine.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    os.nice(NICENESS)
    limit_spinning()
    descriptor, memory, *beside = map(int, sys.argv[1:])
    record = Record.attach(memory)
    os.close(memory)
    with socket.socket(fileno=descriptor) as end:
        connection = Connection(end)
        # At a first start, what to build is found out meanwhile. Later it is known, and other ranks begin before.
        if not connection.has_message:
            _import()

        def build(config: EngineConfig, progress: Callable[[int, int], None]) -> BuiltEngine:
            if config.gives_way:
                _give_way()
            ranks = config.ranks
            here = ranks is not None and ranks.machines is None
            begun = begin(ranks, {}, devices=config.device != "cpu") if ranks is not None and here else None
            _import()
            from penstock.assembly.build import build_engine
            from penstock.assembly.ranks import of_rank
            from penstock.kernels.processor import this_processor

            built = build_engine(config, progress, STARTED, begun=begun)
            if not beside:
                return built
            shared, own = attach(beside[0]), beside[1]
            if not config.gives_way:
                return replace(built, share=Leading(shared, own))
            own = of_rank(config, 0).threads
            return replace(built, share=GivingWay(shared, own, this_processor().use_threads))

        return run_worker(connection, record, build)


def _import() -> None:
    """Import what computes, which takes a second."""
    # Torch's modules stay, and to look through them for garbage while they come takes a tenth of the import.
    gc.disable()
    importlib.import_module("penstock.assembly.build")
    gc.freeze()
    gc.enable()


def _give_way() -> None:
    """Have engines beside this one come first; to be called before there are threads that compute.

    A thread has the priority of the one that began it. Where the kernel shares processors out between sessions
    (autogroup, sched(7)), priorities of processes count within their session only, and each engine has its own.
    """
    os.nice(LAST_NICENESS - NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(LAST_NICENESS - NICENESS))


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Nothing is left to do, and to take a model apart piece by piece would take a while.
    os._exit(status)
