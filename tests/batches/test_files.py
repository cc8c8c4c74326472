"""`/v1/files` over HTTP: uploads, lists, contents, deletion, limits and bad input."""

import itertools
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import NotFoundError, OpenAI

from penstock.server.app import create_app
from penstock.storage.quotas import StorageQuota
from support.documented import described_client
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.stored_server import StoredServer, line, serving_stored
from support.waiting import PATIENCE, until

LIMITS = StorageQuota(file_bytes=300_000, total_bytes=1_000_000, files=12)
HEAD = "POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"


@pytest.fixture(scope="module")
def _stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredServer]:
    with serving_stored(tmp_path_factory.mktemp("stored"), limits=LIMITS) as server:
        yield server


@pytest.fixture
def stored(_stored: StoredServer) -> StoredServer:
    """The module's server, without files."""
    for file in _stored.http.get("/v1/files").json()["data"]:
        _stored.http.delete(f"/v1/files/{file['id']}")
    return _stored


@pytest.fixture
def client(stored: StoredServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stored.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def form(*parts: tuple[str, str | None, bytes], end: bytes = b"--b--\r\n") -> bytes:
    """A form of (name, filename, contents), with the boundary b."""
    body = b""
    for name, filename, contents in parts:
        extra = "" if filename is None else f'; filename="{filename}"'
        body += f'--b\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'.encode() + contents + b"\r\n"
    return body + end


def post(stored: StoredServer, body: bytes, **headers: str) -> httpx.Response:
    all_headers = {"content-type": "multipart/form-data; boundary=b", **headers}
    return stored.http.post("/v1/files", content=body, headers=all_headers)


def left(stored: StoredServer) -> list[Path]:
    """Contents on the disk, whole or half."""
    path = stored.folder
    return [*(path / "files").iterdir(), *(path / "incoming").iterdir()]


def test_the_openai_client(client: OpenAI) -> None:
    contents = b"".join(line(f"n{number}") for number in range(3000))
    file = client.files.create(file=("requests.jsonl", contents), purpose="batch")
    assert (file.filename, file.bytes, file.purpose) == ("requests.jsonl", len(contents), "batch")
    assert file.expires_at is not None and file.expires_at - file.created_at == 30 * 24 * 3600
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == contents
    assert [found.id for found in client.files.list()] == [file.id]
    assert client.files.delete(file.id).deleted
    with pytest.raises(NotFoundError, match="no file"):
        client.files.retrieve(file.id)
    assert list(client.files.list()) == []


def test_an_expiry_of_ones_own(client: OpenAI) -> None:
    file = client.files.create(
        file=("a", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert file.expires_at == file.created_at + 3600


def test_lists_in_pages(client: OpenAI, stored: StoredServer) -> None:
    ids = [client.files.create(file=(f"{number}", b"x"), purpose="batch").id for number in range(7)]
    assert [file.id for file in client.files.list(limit=2)] == ids[::-1]
    assert [file.id for file in client.files.list(limit=3, order="asc")] == ids
    assert [file.id for file in client.files.list(after=ids[2], order="asc", purpose="batch")] == ids[3:]
    assert list(client.files.list(purpose="batch_output")) == []
    page = stored.http.get("/v1/files?limit=2").json()
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == ("list", ids[6], ids[5], True)
    for query, code in (
        *((f"limit={value}", 400) for value in ("0", "-1", "10001", "x", "1e3", "9" * 50, "²", "NaN")),
        *(("order=up", 400), ("purpose=vision", 400), ("page=2", 400), ("limit=1&limit=2", 400), ("after=x", 404)),
    ):
        response = stored.http.get(f"/v1/files?{query}")
        assert response.status_code == code, query
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_names_are_only_shown(client: OpenAI, stored: StoredServer) -> None:
    for name in ("../../etc/passwd", "ü/日.jsonl", "a" * 3000):
        file = client.files.create(file=(name, b"x"), purpose="batch")
        assert name.startswith(file.filename) and len(file.filename) <= 255
    assert all(path.name.startswith("file-") for path in left(stored))
    for file_id in ("..%2Flock", "%2e%2e", "x" * 5000, "%00", "%ff"):
        assert stored.http.get(f"/v1/files/{file_id}").status_code == 404
        assert stored.http.get(f"/v1/files/{file_id}/content").status_code == 404
        assert stored.http.delete(f"/v1/files/{file_id}").status_code == 404


def test_forms_that_are_refused(stored: StoredServer) -> None:
    file, purpose = ("file", "a.jsonl", b"{}"), ("purpose", None, b"batch")
    for body, param in (
        (form(file), "purpose"),
        (form(purpose), "file"),
        (form(), "file"),
        (form(file, ("purpose", None, b"vision")), "purpose"),
        (form(file, ("purpose", None, b"x" * 5000)), "purpose"),
        (form(("file", None, b"{}"), purpose), "file"),
        (form(file, file, purpose), "file"),
        (form(file, purpose, purpose), "purpose"),
        (form(file, purpose, ("colour", None, b"red")), "colour"),
        (form(file, purpose, ("expires_after[anchor]", None, b"created_at")), "expires_after"),
        (form(file, purpose, end=b""), None),
        (form(file, purpose)[:40], None),
        (b"", None),
        (b"{}", None),
        (b"\x00" * 1000, None),
        (form(*(("purpose", None, b"") for _ in range(3000))), "purpose"),
    ):
        response = post(stored, body)
        assert response.status_code == 400, body[:80]
        assert response.json()["error"]["param"] == param, body[:80]
    anchor = ("expires_after[anchor]", None, b"created_at")
    for seconds in (b"10", b"9" * 300, b"-1", b"NaN", b"1e308", b"9223372036854775808", b""):
        response = post(stored, form(file, purpose, anchor, ("expires_after[seconds]", None, seconds)))
        assert response.json()["error"]["param"] == "expires_after.seconds", seconds
    assert stored.http.get("/v1/files").json()["data"] == [] and left(stored) == []
    assert post(stored, form(purpose, file)).status_code == 200


def test_other_types_and_other_sites_are_refused(stored: StoredServer) -> None:
    body = form(("file", "a", b"x"), ("purpose", None, b"batch"))
    for kind in (
        "application/json",
        "multipart/form-data",
        "multipart/mixed; boundary=b",
        "multipart/form-data; b",
        "",
    ):
        assert post(stored, body, **{"content-type": kind}).status_code == 415, kind
    assert post(stored, body, **{"content-type": f"multipart/form-data; boundary={'b' * 300}"}).status_code == 415
    assert post(stored, body, **{"content-encoding": "gzip"}).status_code == 415
    assert post(stored, body, **{"sec-fetch-site": "cross-site"}).status_code == 403
    assert left(stored) == []


def test_files_are_bounded_in_size_number_and_sum(stored: StoredServer) -> None:
    for length in (LIMITS.file_bytes + 1, 5 * LIMITS.file_bytes):
        response = post(stored, form(("file", "a", b"x" * length), ("purpose", None, b"batch")))
        assert response.status_code == 413 and "300000 bytes" in response.json()["error"]["message"]
    assert left(stored) == []
    kept = [stored.upload(b"x" * LIMITS.file_bytes) for _ in range(3)]
    response = post(stored, form(("file", "a", b"x" * 200_000), ("purpose", None, b"batch")))
    assert response.status_code == 413 and response.json()["error"]["code"] == "storage_limit_reached"
    assert "DELETE /v1/files/{id}" in response.json()["error"]["message"]
    for file in kept[1:]:
        stored.http.delete(f"/v1/files/{file['id']}")
    for _ in range(LIMITS.files - 1):
        stored.upload(b"x")
    response = post(stored, form(("file", "a", b"x"), ("purpose", None, b"batch")))
    assert response.status_code == 413 and response.json()["error"]["code"] == "storage_limit_reached"
    assert "12 files" in response.json()["error"]["message"]
    assert len(left(stored)) == LIMITS.files


def test_a_declared_length_beyond_the_limit_is_refused_unread(stored: StoredServer) -> None:
    with socket.create_connection((stored.http.base_url.host, stored.http.base_url.port or 0), PATIENCE) as connection:
        connection.sendall(f"{HEAD}Content-Length: 9000000000\r\n\r\n".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413")


def test_a_body_that_is_cut_off_leaves_nothing(stored: StoredServer) -> None:
    body = form(("file", "a", b"x" * 250_000), ("purpose", None, b"batch"))
    address = (stored.http.base_url.host, stored.http.base_url.port or 0)
    for length in (0, 30, 200_000, len(body) - 1):
        with socket.create_connection(address, PATIENCE) as connection:
            connection.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body[:length])
    until(lambda: not left(stored) and not stored.store.files.incoming.total())
    assert stored.http.get("/v1/files").json()["data"] == []


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_form_in_pieces_of_any_size(stored: StoredServer, size: int) -> None:
    contents = b'{"a": 1}\r\n--a\r\n--\r\n-\r\n\r\n\r'
    body = form(("purpose", None, b"batch"), ("file", "a", contents))
    pieces = iter([body[start : start + size] for start in range(0, len(body), size)])
    response = stored.http.post(
        "/v1/files", content=pieces, headers={"content-type": "multipart/form-data; boundary=b"}
    )
    assert response.status_code == 200, response.text
    assert stored.http.get(f"/v1/files/{response.json()['id']}/content").content == contents


def test_contents_stay_readable_while_they_are_deleted(stored: StoredServer) -> None:
    contents = bytes(itertools.islice(itertools.cycle(range(256)), 290_000))
    file = stored.upload(contents)
    with stored.http.stream("GET", f"/v1/files/{file['id']}/content") as response:
        assert response.headers["content-length"] == "290000"
        assert "attachment" in response.headers["content-disposition"]
        assert stored.http.delete(f"/v1/files/{file['id']}").status_code == 200
        assert response.read() == contents
    assert left(stored) == []


def test_old_files_go(stored: StoredServer, monkeypatch: pytest.MonkeyPatch) -> None:
    old, now = stored.upload(b"old"), time.time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now + LIMITS.seconds_kept + 60)
        fresh = stored.upload(b"new")
    assert [file["id"] for file in stored.http.get("/v1/files").json()["data"]] == [fresh["id"]]
    assert old["id"] != fresh["id"] and len(left(stored)) == 1


def test_without_a_data_directory_every_route_says_so(tokenizer: Any) -> None:
    with running(create_app(ScriptedEngine(None, [5]), None)) as url, described_client(url) as http:
        for method, path in (
            *(("GET", "/v1/files"), ("POST", "/v1/files"), ("GET", "/v1/files/x"), ("DELETE", "/v1/files/x")),
            *(("GET", "/v1/files/x/content"), ("GET", "/v1/batches"), ("POST", "/v1/batches")),
            *(("GET", "/v1/batches/x"), ("POST", "/v1/batches/x/cancel")),
        ):
            response = http.request(method, path)
            assert response.status_code == 404 and response.json()["error"]["code"] == "storage_off"
            assert "--data-dir off" in response.json()["error"]["message"]
