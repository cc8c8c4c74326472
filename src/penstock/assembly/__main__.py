"""The engine process: `python -m penstock.assembly DESCRIPTOR`, started by a client that holds the other end."""

import time

STARTED = time.monotonic()

import signal  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402


def main() -> int:
    """Serve the socket whose descriptor is the last argument; returns the exit status."""
    from penstock.engine.worker import run_worker

    # The client decides when the engine ends; an interrupt that is meant for it must not reach the engine.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[-1])) as end:
        from penstock.assembly.build import build_engine

        return run_worker(end, lambda config, progress: build_engine(config, progress, STARTED))


if __name__ == "__main__":
    sys.exit(main())
