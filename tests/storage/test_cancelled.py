"""Uploads and downloads that are cut off: by their clients, or by a server that stops at once."""

import asyncio
import contextlib
import io
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import psutil
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.server.app import create_app
from penstock.storage import files
from penstock.storage.files import FileStore, StoredFile
from penstock.storage.store import Store
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.waiting import PATIENCE, until

MEGABYTE = 1 << 20
# More than the kernel keeps for a client that does not read.
LARGE = 24 * MEGABYTE


class Tasks:
    """Passes requests on, and keeps the tasks that answer them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append((asyncio.get_running_loop(), task))
        await self._app(scope, receive, send)

    def cancel(self) -> None:
        """As a server does that stops at once."""
        loop, task = self._tasks[-1]
        loop.call_soon_threadsafe(task.cancel)

    def ended(self) -> bool:
        return self._tasks[-1][1].done()


class Counted(io.BufferedReader):
    """Contents that count what is read of them."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


class Served:
    def __init__(self, url: str, store: Store, folder: Path, tasks: Tasks) -> None:
        self.port = httpx.URL(url).port or 0
        self.url, self.store, self.folder, self.tasks = url, store, folder, tasks
        self.opened: list[Counted] = []

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def upload(self, contents: bytes) -> str:
        answer = httpx.post(f"{self.url}/v1/files", files={"file": ("a", contents)}, data={"purpose": "batch"})
        assert answer.status_code == 200
        return str(answer.json()["id"])

    def download(self, file_id: str) -> socket.socket:
        """A client that has read the beginning."""
        client = self.connect()
        client.sendall(f"GET /v1/files/{file_id}/content HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        return client

    def rows(self) -> set[str]:
        return {file["id"] for file in httpx.get(f"{self.url}/v1/files").json()["data"]}

    def contents(self) -> set[str]:
        """Names on the disk, whole or half."""
        path = self.folder
        return {file.name for name in ("files", "incoming") for file in (path / name).iterdir()}

    def open_contents(self) -> list[str]:
        """Those that this process has open."""
        path = str(self.folder / "")
        names = [str(file.path) for file in psutil.Process().open_files()]
        return [name for name in names if name.startswith(path) and "file-" in name]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    store = Store.open(tmp_path)
    tasks = Tasks(create_app(ScriptedEngine(None, [5]), None, store=store))
    with contextlib.closing(store), running(tasks) as url:
        found = Served(url, store, tmp_path, tasks)
        usual = FileStore.open

        async def opened(self: FileStore, file_id: str, owner: str) -> tuple[StoredFile, Any]:
            file, contents = await usual(self, file_id, owner)
            with contents:
                found.opened.append(Counted(io.FileIO(os.dup(contents.fileno()))))
            return file, found.opened[-1]

        monkeypatch.setattr(FileStore, "open", opened)
        yield found


@pytest.mark.parametrize("ahead", [0, 1], ids=["one request", "another one behind it"])
def test_contents_are_read_no_further_for_clients_who_have_gone(served: Served, ahead: int) -> None:
    file_id = served.upload(b"x" * LARGE)
    clients = [served.download(file_id) for _ in range(4)]
    for client in clients:
        client.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n" * ahead)
        client.close()
    until(lambda: not served.open_contents())
    assert len(served.opened) == 4 and all(0 < contents.count < LARGE for contents in served.opened)
    assert served.rows() == served.contents() == {file_id}


def test_a_cancelled_download_closes_its_file(served: Served) -> None:
    file_id = served.upload(b"x" * LARGE)
    with served.download(file_id) as client:
        assert served.open_contents()
        served.tasks.cancel()
        until(served.tasks.ended)
        assert served.open_contents() == []
        # The connection is closed, so that nobody takes the beginning for the whole.
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while data := client.recv(MEGABYTE):
                received += len(data)
        assert received < LARGE
    assert served.rows() == served.contents() == {file_id}


@pytest.mark.parametrize("step", ["write", "fsync", "insert_file"])
def test_an_upload_that_is_cancelled_is_there_whole_or_not_at_all(
    served: Served, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled while a thread is at work for it, which then goes on to its end."""
    reached, goes_on = threading.Event(), threading.Event()
    owner: Any = files if step == "insert_file" else os
    usual = getattr(owner, step)

    def held(*arguments: Any) -> Any:
        reached.set()
        assert goes_on.wait(PATIENCE)
        return usual(*arguments)

    monkeypatch.setattr(owner, step, held)
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 3 * MEGABYTE
    body += b'\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'
    head = "POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    with served.connect() as client:
        sending = threading.Thread(target=_send, args=(client, f"{head}Content-Length: {len(body)}\r\n\r\n", body))
        sending.start()
        assert reached.wait(PATIENCE)
        served.tasks.cancel()
        goes_on.set()
        until(served.tasks.ended)
    sending.join(PATIENCE)
    assert served.open_contents() == [] and not served.store.files.incoming.total()
    assert served.rows() == served.contents()
    assert len(served.contents()) == (step == "insert_file")


def test_a_file_that_is_opened_for_no_caller_any_more_is_closed(served: Served) -> None:
    """Cancelled while a thread opens it."""
    file_id = served.upload(b"x")
    contents = served.store.files._contents
    reached, goes_on, opened = threading.Event(), threading.Event(), list[BinaryIO]()
    usual = contents.open

    def held(file_id: str, size: int) -> BinaryIO:
        reached.set()
        assert goes_on.wait(PATIENCE)
        opened.append(usual(file_id, size))
        return opened[-1]

    contents.open = held  # type: ignore[method-assign]
    with served.connect() as client:
        client.sendall(f"GET /v1/files/{file_id}/content HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert reached.wait(PATIENCE)
        served.tasks.cancel()
        until(served.tasks.ended)
        goes_on.set()
        until(lambda: opened and opened[0].closed)


def _send(client: socket.socket, head: str, body: bytes) -> None:
    with contextlib.suppress(OSError):
        client.sendall(head.encode() + body)
