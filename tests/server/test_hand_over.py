"""A gateway whose place another one takes on the same socket; and sockets that are inherited and cannot be."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from penstock.core.errors import ConfigurationError
from penstock.server.notify import READY, VARIABLE, notify
from penstock.server.serve import inherited
from support.waiting import PATIENCE, until

GATEWAY = (sys.executable, "-m", "penstock.cli.main", "gateway", "--replica", "http://127.0.0.1:9")


@contextlib.contextmanager
def gateway(listener: socket.socket) -> "Iterator[subprocess.Popen[bytes]]":
    process = subprocess.Popen(
        [*GATEWAY, "--listen-fd", str(listener.fileno())], pass_fds=(listener.fileno(),), stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)


def test_one_takes_the_others_place_and_no_connection_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with gateway(listener) as old, httpx.Client(timeout=PATIENCE) as kept:
            assert kept.get(f"{url}/health/live").headers.get("connection") != "close"
            with gateway(listener) as new:
                old.send_signal(signal.SIGTERM)

                def has_ended() -> bool:
                    """Every request until then is answered, by the one or the other."""
                    assert kept.get(f"{url}/health/live").status_code == 200
                    return old.poll() is not None

                until(has_ended)
                assert old.returncode == 0 and new.poll() is None
                assert kept.get(f"{url}/health/live").status_code == 200


def test_what_is_no_socket_that_listens_is_refused() -> None:
    with socket.socket() as idle, pytest.raises(ConfigurationError, match="no TCP socket that listens"):
        inherited(idle.fileno())
    left, right = socket.socketpair()
    with left, right, pytest.raises(ConfigurationError, match="no TCP socket that listens"):
        inherited(left.fileno())
    with open(os.devnull) as file, pytest.raises(ConfigurationError, match="is no socket"):
        inherited(file.fileno())


def test_it_tells_who_started_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    name = f"\0penstock-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name)
        monkeypatch.setenv(VARIABLE, "@" + name[1:])
        notify(READY)
        assert receiver.recv(100) == READY
    notify(READY)
    assert "cannot be told" in caplog.text
    monkeypatch.delenv(VARIABLE)
    notify(READY)
