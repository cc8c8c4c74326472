"""Machines find each other where they know the secret and have the same release, and are told why not elsewhere."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from penstock.core.errors import ConfigurationError, EngineError
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
    read_beats,
    send,
    welcome,
)
from support.waiting import PATIENCE

SECRET = b"what only machines know"


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener("127.0.0.1", 0, SECRET, "1.0")
    yield listener
    listener.close()


JOINING = Joining(1, 7, b"weights", b"drawn")


def _call(listener: Listener, asked: Caller = JOINING, secret: bytes = SECRET, release: str = "1.0") -> socket.socket:
    end, said = call("127.0.0.1", listener.port, secret, release, lambda _mine: asked, PATIENCE)
    assert said == asked
    return end


def test_who_knows_the_secret_is_heard(listener: Listener) -> None:
    with _call(listener) as mine:
        come = listener.next(PATIENCE)
        assert come is not None
        caller, end = come
        with end:
            assert isinstance(caller, Joining) and msgspec.structs.replace(caller, proof=b"") == JOINING
            welcome(end, JOINING, Welcome(b"config", "10.0.0.1", 8), SECRET)
            answer = read_answer(mine, JOINING, SECRET)
            assert isinstance(answer, Welcome)
            assert (answer.config, answer.next_host, answer.next_port) == (b"config", "10.0.0.1", 8)
            send(mine, Beats({1: (5, 70)}))
            assert read_beats(end) == {1: (5, 70)}
            # Nor is an engine believed that does not know it, or says again what it has heard.
            welcome(end, JOINING, Welcome(b"config", "10.0.0.1", 8), b"another")
            with pytest.raises(EOFError):
                read_answer(mine, JOINING, SECRET)
            send(end, answer)
            with pytest.raises(EOFError):
                read_answer(mine, msgspec.structs.replace(JOINING, nonce=b"drawn later"), SECRET)
        with pytest.raises(EOFError):
            read_answer(mine, JOINING, SECRET)


def test_who_does_not_is_told_and_never_heard(listener: Listener) -> None:
    with _call(listener, secret=b"another") as mine:
        answer = read_answer(mine, JOINING, SECRET)
        assert isinstance(answer, Refused) and "--machines-secret-file" in answer.message
    with _call(listener, Connecting(1, "values"), secret=b"") as mine:
        assert mine.recv(1) == b""
    # Nor who says what is no message, or too much.
    for content in (b"\x03\x00\x00\x00abc", b"\xff\xff\xff\xff", b"\x00\x20\x00\x00", b"\x00"):
        with socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE) as mine:
            mine.sendall(content)
            mine.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while mine.recv(1 << 10):
                    pass
    with _call(listener):
        come = listener.next(PATIENCE)
        assert come is not None and isinstance(come[0], Joining)
        come[1].close()
    assert listener.next(0) is None


def test_what_was_said_once_is_not_good_again(listener: Listener) -> None:
    _call(listener).close()
    assert (come := listener.next(PATIENCE)) is not None
    come[1].close()
    said = come[0]
    with socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE) as mine:
        send(mine, said)
        mine.shutdown(socket.SHUT_WR)
        answer = b""
        while more := mine.recv(1 << 10):
            answer += more
        assert b"The secret is another one" in answer


def test_what_is_no_engine_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def greet() -> None:
            end, _ = other.accept()
            with end:
                end.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        greeting = threading.Thread(target=greet)
        greeting.start()
        with pytest.raises(
            EngineError, match=f"What answers at 127.0.0.1:{port} is no engine that waits for machines."
        ):
            call("127.0.0.1", port, SECRET, "1.0", lambda _mine: JOINING, PATIENCE)
        greeting.join()


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
