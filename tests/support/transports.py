"""Transfer engines that are installed here, over TCP on this machine."""

import contextlib
import os
from collections.abc import Iterator
from functools import cache

import pytest

from penstock.core.handover import Transport
from penstock.runtime.offer_cells import Cells
from penstock.runtime.transfers import TransferFailed, Transfers

ENGINES: tuple[Transport, ...] = ("nixl", "mooncake")


@contextlib.contextmanager
def over_tcp(transport: Transport) -> Iterator[None]:
    """The engine for the block; skips the test where it is not there."""
    with pytest.MonkeyPatch.context() as patched:
        # UCX would take memory in common, where a machine allows it.
        patched.setenv("UCX_TLS", "tcp,self")
        if (why := _obstacle(transport)) is not None:
            if os.environ.get("CI"):
                pytest.fail(f"{transport} cannot be run: {why}")
            pytest.skip(f"{transport} cannot be run: {why}")
        yield


@cache
def _obstacle(transport: Transport) -> str | None:
    try:
        Transfers(transport, Cells(1, 1), "127.0.0.1", serves=True).close()
    except (ImportError, TransferFailed) as error:
        return str(error)
    return None
