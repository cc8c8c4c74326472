"""Machines find each other where they know the secret and have the same release, and are told why not elsewhere."""

import socket
from collections.abc import Iterator

import pytest

from penstock.core.errors import ConfigurationError, EngineError
from penstock.parallel.machines import (
    Beats,
    Connecting,
    Joining,
    Listener,
    Refused,
    Welcome,
    call,
    read_answer,
    read_beats,
    send,
)
from support.waiting import PATIENCE

SECRET = b"what only machines know"


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener("127.0.0.1", 0, SECRET, "1.0")
    yield listener
    listener.close()


def _joining(proof: bytes) -> Joining:
    return Joining(proof, "1.0", 1, 7, b"weights")


def _call(listener: Listener, secret: bytes = SECRET, release: str = "1.0") -> socket.socket:
    return call("127.0.0.1", listener.port, secret, release, _joining, PATIENCE)


def test_who_knows_the_secret_is_heard(listener: Listener) -> None:
    with _call(listener) as mine:
        come = listener.next(PATIENCE)
        assert come is not None
        caller, end = come
        with end:
            assert isinstance(caller, Joining) and (caller.machine, caller.port, caller.weights) == (1, 7, b"weights")
            send(end, Welcome(b"config", "10.0.0.1", 8))
            assert read_answer(mine) == Welcome(b"config", "10.0.0.1", 8)
            send(mine, Beats({1: 5}))
            assert read_beats(end) == {1: 5}
        with pytest.raises(EOFError):
            read_answer(mine)


def test_who_does_not_is_told_and_never_heard(listener: Listener) -> None:
    with _call(listener, b"another") as mine:
        answer = read_answer(mine)
        assert isinstance(answer, Refused) and "--machines-secret-file" in answer.message
    with call("127.0.0.1", listener.port, b"", "1.0", lambda proof: Connecting(proof, 1, "values"), PATIENCE) as mine:
        assert mine.recv(1) == b""
    # Nor who says what is no message, or too much.
    for content in (b"\x03\x00\x00\x00abc", b"\xff\xff\xff\xff", b"\x00"):
        with socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE) as mine:
            mine.sendall(content)
            mine.shutdown(socket.SHUT_WR)
            while mine.recv(1 << 10):
                pass
    with _call(listener):
        come = listener.next(PATIENCE)
        assert come is not None and isinstance(come[0], Joining)
        come[1].close()
    assert listener.next(0) is None


def test_a_proof_is_good_for_one_call(listener: Listener) -> None:
    seen: list[bytes] = []

    def asked(proof: bytes) -> Joining:
        seen.append(proof)
        return _joining(seen[0])

    call("127.0.0.1", listener.port, SECRET, "1.0", asked, PATIENCE).close()
    assert (come := listener.next(PATIENCE)) is not None
    come[1].close()
    with call("127.0.0.1", listener.port, SECRET, "1.0", asked, PATIENCE) as mine:
        assert isinstance(read_answer(mine), Refused)


def test_another_release_is_named(listener: Listener) -> None:
    with pytest.raises(EngineError, match=r"The first machine has Penstock 1.0, and this one 2.0; install the same."):
        _call(listener, release="2.0")


def test_a_port_in_use_is_named(listener: Listener) -> None:
    with pytest.raises(ConfigurationError, match=f"127.0.0.1:{listener.port} .*; give another --machines-at."):
        Listener("127.0.0.1", listener.port, SECRET, "1.0")


def test_a_listener_that_has_closed_answers_none(listener: Listener) -> None:
    listener.close()
    with pytest.raises(OSError):
        _call(listener)
