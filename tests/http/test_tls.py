"""TLS: real clients, what is refused at the start, and those who speak something else or nothing."""

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from penstock.core.errors import ConfigurationError
from penstock.http import accept
from penstock.http.tls import load_tls
from penstock.server.app import create_app
from penstock.storage.store import Store
from support.certificates import make_certificate, openssl
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls") / "made")


@pytest.fixture(scope="module")
def url(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    engine = ScriptedEngine(None, [5] * 1000)
    with (
        contextlib.closing(Store.open(tmp_path_factory.mktemp("data"))) as store,
        running(create_app(engine, None, store=store), tls=load_tls(*files).context) as url,
    ):
        yield url


def trusting(files: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files[0])


def connect(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0), PATIENCE)


def test_real_clients(files: tuple[Path, Path], url: str) -> None:
    with httpx.Client(verify=trusting(files), timeout=PATIENCE) as http:
        assert http.get(f"{url}/health/live").json() == {"status": "live"}
        contents = b"x" * 3_000_000
        file = http.post(f"{url}/v1/files", files={"file": ("a", contents)}, data={"purpose": "batch"}).json()
        assert http.get(f"{url}/v1/files/{file['id']}/content").content == contents
        client = OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http, max_retries=0)
        chunks = list(client.completions.create(model="scripted", prompt=[5], max_tokens=150, stream=True))
        assert chunks[-1].choices[0].finish_reason == "length"
    # Whoever does not trust the certificate finds that the server has it, and nothing else.
    with pytest.raises(httpx.ConnectError, match="self-signed"):
        httpx.get(f"{url}/health/live")


@pytest.mark.parametrize(
    ("version", "offered"), [(ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")]
)
def test_versions_and_protocols(files: tuple[Path, Path], url: str, version: ssl.TLSVersion, offered: str) -> None:
    context = trusting(files)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    with context.wrap_socket(connect(url), server_hostname="localhost") as connection:
        assert connection.version() == offered
        assert connection.selected_alpn_protocol() == "http/1.1"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_older_versions_are_refused(files: tuple[Path, Path], url: str) -> None:
    context = trusting(files)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError), connect(url) as plain:
        context.wrap_socket(plain, server_hostname="localhost")


def test_who_speaks_no_tls_is_cut_off_without_a_word_in_the_log(
    files: tuple[Path, Path], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    for text in (b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n", b"\x00" * 100, b"\x16\x03\x01\x02"):
        with connect(url) as connection, contextlib.suppress(ConnectionResetError):
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            assert b"HTTP" not in connection.recv(1000)
    with httpx.Client(verify=trusting(files)) as http:
        assert http.get(f"{url}/health/live").status_code == 200
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_a_handshake_that_does_not_end_is_ended(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[accept.Acceptor] = []
    usual = accept.Acceptor.__init__

    def noted(self: accept.Acceptor, *arguments: Any, **options: Any) -> None:
        usual(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(accept.Acceptor, "__init__", noted)
    monkeypatch.setattr(accept, "HANDSHAKE_SECONDS", 0.3)
    with running(create_app(ScriptedEngine(None, [5]), None), tls=load_tls(*files).context) as url:
        with connect(url) as silent, connect(url) as half:
            half.sendall(b"\x16\x03\x01\x02\x00\x01")
            for connection in (silent, half):
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(100) == b""
        # The end was this one, and not the event loop's own.
        assert [each._options["ssl_handshake_timeout"] for each in made] == [0.3]

        def is_served() -> bool:
            # On a busy machine, a client of good will may take as long.
            with contextlib.suppress(httpx.TransportError), httpx.Client(verify=trusting(files)) as http:
                return http.get(f"{url}/health/live").status_code == 200
            return False

        until(is_served)


def test_what_cannot_be_used_is_told(files: tuple[Path, Path], tmp_path: Path) -> None:
    certificate, key = files
    _, other = make_certificate(tmp_path / "other")
    encrypted, junk = tmp_path / "encrypted.pem", tmp_path / "junk.pem"
    openssl("ec", "-in", key, "-aes256", "-passout", "pass:secret", "-out", encrypted)
    junk.write_text("nothing of the kind")
    for pair, says in (
        ((tmp_path / "none.pem", key), "--tls-certificate .* cannot be read .No such file"),
        ((certificate, tmp_path), "--tls-key .* cannot be read .Is a directory"),
        ((certificate, other), "is not the key of"),
        ((certificate, encrypted), "is encrypted"),
        ((junk, key), "are not a certificate"),
        ((certificate, junk), "are not a certificate"),
        ((key, certificate), "are not a certificate"),
        (make_certificate(tmp_path / "old", ends="20200201000000Z"), "has expired"),
        (make_certificate(tmp_path / "new", begins="20900101000000Z"), "is not valid yet"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            load_tls(*pair)


def test_the_start_tells_until_when(files: tuple[Path, Path], tmp_path: Path) -> None:
    assert load_tls(*files).reason.why.endswith("valid until Jan  1 00:00:00 2099 GMT")
    soon = time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + 86400))
    assert load_tls(*make_certificate(tmp_path / "soon", ends=soon)).reason.why.endswith("which is soon")


def test_of_many_handshakes_the_oldest_gives_way(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "MOST_BEGINNING", 8)
    monkeypatch.setattr(accept, "HANDSHAKE_SECONDS", 2 * PATIENCE)
    with (
        running(create_app(ScriptedEngine(None, [5]), None), tls=load_tls(*files).context) as url,
        contextlib.ExitStack() as stack,
    ):
        silent = [stack.enter_context(connect(url)) for _ in range(40)]
        # Long before its time is up.
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(100) == b""
        with httpx.Client(verify=trusting(files)) as http:
            assert http.get(f"{url}/health/live").status_code == 200
        silent[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(100)
