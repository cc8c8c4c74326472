"""Engines that read memory of other processes by whatever network there is: NIXL, and Mooncake's transfer engine.

They are loaded where one is made, which a process of its own does (`transfer_process.py`).
"""

import importlib
import importlib.util
import os
import threading
import time
from collections import OrderedDict
from math import ceil
from pathlib import Path
from typing import Any, Protocol

# What has NIXL: the first chooses by the version of CUDA.
NIXL_PACKAGES = ("nixl", "nixl_cu12", "nixl_cu13")
# Whole seconds that Mooncake takes from the environment; it would wait for 30.
_MOONCAKE_SECONDS = ("MC_HANDSHAKE_CONNECT_TIMEOUT", "MC_TCP_PROGRESS_TIMEOUT_SEC", "MC_TCP_STATUS_TIMEOUT_SEC")
_PAUSE_SECONDS, _SERVING_MILLISECONDS = 5e-5, 1
# Where the kernel lists devices for RDMA.
_RDMA_DEVICES = Path("/sys/class/infiniband")
# Replicas whose memory NIXL knows.
_MOST_PEERS = 64


class EngineFailed(Exception):
    """It cannot start, or something cannot be read."""


class TransferEngine(Protocol):
    """Reads memory of others, and lets them read the memory that it was made with. May be used on several threads.

    Attributes:
        at: where others find it, in its own form.
        pause: milliseconds between two calls of `progress`; None: it needs none.
    """

    at: bytes
    pause: int | None

    def read(self, at: bytes, there: int, here: int, size: int) -> None:
        """Copy bytes from an address of the engine that is `at` to an address of this process.

        Raises EngineFailed, or what the engine raises, after some seconds at most.
        """

    def progress(self) -> None:
        """Answer what others read, if no thread of its own does."""

    def forget(self, at: bytes) -> None:
        """Let go of what is known of an engine."""


class Nixl:
    """An agent with UCX, which chooses what the bytes go by (https://github.com/ai-dynamo/nixl).

    NIXL's own thread would spin: it takes a core. One that offers answers between pauses instead, and one that reads
    looks itself.
    """

    def __init__(self, name: str, address: int, size: int, seconds: float, *, serves: bool) -> None:
        """`name` is unlike those of all others; a read has failed after some `seconds`.

        `serves`: others read from the memory.
        """
        package = next(each for each in NIXL_PACKAGES if importlib.util.find_spec(each) is not None)
        api = importlib.import_module(f"{package}._api")
        self._agent: Any = api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
        if "UCX" not in self._agent.backends:
            raise EngineFailed("NIXL has no UCX")
        self._agent.register_memory([(address, size, 0, "")], "DRAM")
        self.at: bytes = self._agent.get_agent_metadata()
        self.pause = _SERVING_MILLISECONDS if serves else None
        self._seconds, self._lock = seconds, threading.Lock()
        self._peers: OrderedDict[bytes, str] = OrderedDict()

    def read(self, at: bytes, there: int, here: int, size: int) -> None:
        """See `TransferEngine`."""
        until, agent = time.monotonic() + self._seconds, self._agent
        with self._lock:
            places = (agent.get_xfer_descs([(each, size, 0)], "DRAM") for each in (here, there))
            handle = agent.initialize_xfer("READ", *places, self._peer(at))
            state = agent.transfer(handle)
        while state == "PROC" and time.monotonic() < until:
            time.sleep(_PAUSE_SECONDS)
            with self._lock:
                state = agent.check_xfer_state(handle)
        with self._lock:
            # Of what is under way, this is the end.
            agent.release_xfer_handle(handle)
        if state != "DONE":
            raise EngineFailed("NIXL has not read it in time" if state == "PROC" else "NIXL cannot read it")

    def progress(self) -> None:
        """See `TransferEngine`."""
        self._agent.get_new_notifs()

    def forget(self, at: bytes) -> None:
        """See `TransferEngine`."""
        with self._lock:
            peer = self._peers.pop(at, None)
            if peer is not None:
                self._agent.remove_remote_agent(peer)

    def _peer(self, at: bytes) -> str:
        """What NIXL calls an engine; the lock is held."""
        if at not in self._peers:
            if len(self._peers) >= _MOST_PEERS:
                self._agent.remove_remote_agent(self._peers.popitem(last=False)[1])
            self._peers[at] = self._agent.add_remote_agent(at)
        self._peers.move_to_end(at)
        return self._peers[at]


class Mooncake:
    """A transfer engine that knows others by address, without a server of metadata (Qin et al., FAST 2025)."""

    pause: int | None = None

    def __init__(self, host: str, address: int, size: int, seconds: float) -> None:
        """`host` is this machine's address, as others reach it; a read has failed after some `seconds`."""
        for each in _MOONCAKE_SECONDS:
            os.environ.setdefault(each, str(ceil(seconds)))
        try:
            module = importlib.import_module("mooncake.engine")
        except ImportError as error:
            needs = "on Debian, it needs the packages libcurl4, libibverbs1 and libnuma1"
            raise EngineFailed(f"Mooncake cannot be loaded ({error}); {needs}") from None
        self._engine: Any = module.TransferEngine()
        protocol = "rdma" if _RDMA_DEVICES.is_dir() and os.listdir(_RDMA_DEVICES) else "tcp"
        name = f"[{host}]" if ":" in host else host
        if code := self._engine.initialize(name, "P2PHANDSHAKE", protocol, ""):
            raise EngineFailed(f"Mooncake cannot start at {name} with {protocol} (code {code})")
        if code := self._engine.register_memory(address, size):
            raise EngineFailed(f"Mooncake cannot register {size} bytes of memory (code {code})")
        self.at = f"{name}:{self._engine.get_rpc_port()}".encode()

    def read(self, at: bytes, there: int, here: int, size: int) -> None:
        """See `TransferEngine`."""
        if code := self._engine.transfer_sync_read(at.decode(), here, there, size):
            raise EngineFailed(f"Mooncake cannot read it (code {code})")

    def progress(self) -> None:
        """See `TransferEngine`: threads of its own answer."""

    def forget(self, at: bytes) -> None:
        """See `TransferEngine`: it lets go of nothing, and what it knows of one is small."""


def is_installed(transport: str) -> bool:
    """Whether there is a package with this engine."""
    packages = NIXL_PACKAGES if transport == "nixl" else ("mooncake",)
    return any(importlib.util.find_spec(each) is not None for each in packages)
