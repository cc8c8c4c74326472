"""A port that a machine of a replica is told of, before it listens there."""

import contextlib
import errno
import socket

import pytest

from penstock.fleet.ray_place import reserved_port


def test_a_reserved_port_is_for_who_is_told_of_it() -> None:
    with reserved_port("127.0.0.1") as held:
        place = held.getsockname()
        # What takes a port of its own choice does not get it, nor one that is at this port without knowing.
        with contextlib.closing(socket.socket()) as other, pytest.raises(OSError) as failed:
            other.bind(place)
        assert failed.value.errno == errno.EADDRINUSE
        # An engine that is started again listens there again.
        for _ in range(2):
            with socket.create_server(place) as listener, socket.create_connection(place) as caller:
                accepted, _ = listener.accept()
                accepted.close()
                assert caller.recv(1) == b""


def test_ports_that_the_system_chooses_are_others() -> None:
    with reserved_port("127.0.0.1") as held, contextlib.ExitStack() as opened:
        taken = {opened.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(200)}
        assert held.getsockname()[1] not in taken
