"""Requests that two programs could read differently: refused, or read in the one way that RFC 9112 leaves.

Each case is sent as it is and byte by byte, with another request behind it. The table says how many answers come, and
of what status: what is refused takes all that follows with it, so that nothing which a proxy took for a body is ever
answered as a request.
"""

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from penstock.core.errors import RequestError
from penstock.http.heads import check_head
from penstock.server.app import create_app
from penstock.text.tokenizer import Tokenizer
from support.http_server import running
from support.scripted_engine import ScriptedEngine
from support.waiting import PATIENCE

BODY = b'{"prompt":[5],"max_tokens":1}'
HEXADECIMAL = b"%x" % len(BODY)
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
POST_10 = POST.replace(b"HTTP/1.1", b"HTTP/1.0")
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = HEXADECIMAL + b"\r\n" + BODY + b"\r\n0\r\n\r\n"
GET = b"GET /version HTTP/1.1\r\nHost: x\r\n"
NEXT = GET + b"\r\n"


@dataclass(frozen=True)
class Case:
    """What is sent before `NEXT`; statuses of all answers; whether the connection stays open; and why.

    Where the rest comes only after an answer, it is another request: `early` is the status of what is answered before
    them then, and `late` that of what is answered behind them.
    """

    sent: bytes
    statuses: tuple[int, ...]
    why: str
    early: tuple[int, ...] = ()
    late: tuple[int, ...] = ()

    @property
    def stays_open(self) -> bool:
        """Whether the next request is answered."""
        return self.statuses[-1] == 200 and len(self.statuses) > 1


def coded(coding: bytes, body: bytes = CHUNKS) -> bytes:
    return POST + b"Transfer-Encoding:" + coding + b"\r\n\r\n" + body


def sized(length: bytes) -> bytes:
    return POST + b"Content-Length:" + length + b"\r\n\r\n" + BODY


def chunked(chunks: bytes) -> bytes:
    return POST + CHUNKED + b"\r\n" + chunks


def headed(line: bytes) -> bytes:
    return GET + line + b"\r\n\r\n"


def refused(why: str, *sent: bytes) -> list[Case]:
    return [Case(each, (400,), why) for each in sent]


def taken(why: str, *sent: bytes) -> list[Case]:
    return [Case(each, (200, 200), why) for each in sent]


CASES = [
    *taken("what everybody reads alike", POST + LENGTH + b"\r\n" + BODY, chunked(CHUNKS), sized(b" 0029"), NEXT),
    *refused(
        "two lengths of one body (RFC 9112, 6.3)",
        POST + LENGTH + CHUNKED + b"\r\n" + CHUNKS,
        POST + CHUNKED + LENGTH + b"\r\n" + CHUNKS,
        POST + LENGTH + LENGTH + b"\r\n" + BODY,
        POST + LENGTH + b"Content-Length: 3\r\n\r\n" + BODY,
        sized(b" 29, 29"),
        POST + b"Transfer-Encoding: xchunked\r\n" + LENGTH + b"\r\n" + BODY,
        POST + b"Transfer-Encoding: identity\r\n" + LENGTH + b"\r\n" + BODY,
        POST + b"Transfer-Encoding:\r\n" + LENGTH + b"\r\n" + BODY,
    ),
    *refused(
        "a length is decimal digits (RFC 9110, 8.6)",
        *map(sized, (b" +29", b" -1", b" 0x1d", b" 2 9", b" ", b" 2_9", b" 29.0", b" \xd9\xa2\xd9\xa9")),
        sized(b" 18446744073709551645"),
    ),
    *refused(
        "transfer codings other than chunked are not implemented, and would leave the body's end open",
        *map(coded, (b" identity", b" xchunked", b" chunked, identity", b" identity, chunked", b" gzip, chunked", b"")),
        *map(
            coded, (b" chunked, chunked", b" chunked,", b" chunked;q=1", b' "chunked"', b" \x0bchunked", b" x chunked")
        ),
        POST + CHUNKED + CHUNKED + b"\r\n" + CHUNKS,
        POST + CHUNKED + b"Transfer-Encoding: identity\r\n\r\n" + CHUNKS,
    ),
    *taken("white space around a value is no part of it, and names of codings have no case", coded(b"\tchunked")),
    *taken("the same", coded(b" chunked "), coded(b" CHUNKED"), coded(b"chunked")),
    *refused(
        "a name ends at its colon (RFC 9112, 5.1)",
        POST + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKS,
        POST + b"Content-Length : 29\r\n\r\n" + BODY,
        *map(headed, (b"X-A : b", b": b", b"abc", b" X-A: b", b"X\0A: b", b"X(A: b")),
    ),
    *taken("another header", POST + b"Transfer_Encoding: chunked\r\n" + LENGTH + b"\r\n" + BODY),
    *refused(
        "folded lines (RFC 9112, 5.2)",
        headed(b"X-A: b\r\n c"),
        coded(b"\r\n chunked"),
        sized(b"\r\n 29"),
        GET.replace(b"\r\nHost", b"\r\n Host") + b"\r\n",
    ),
    *refused(
        "a line ends with CR LF, and no control character is in a value (RFC 9112, 2.2)",
        (GET + b"\r\n").replace(b"\r\n", b"\n"),
        GET + b"X-A: b\n\r\n",
        GET + b"\n",
        *map(headed, (b"X-A: a\rTransfer-Encoding: chunked", b"X-A: a\0b", b"X-A: a\x01b", b"X-A: a\nX-B: b")),
        GET.replace(b"\r\n", b"\r", 1) + b"\r\n",
    ),
    *refused(
        "a chunk's size is hexadecimal digits, of at most 64 bits, and its data is as long (RFC 9112, 7.1)",
        chunked(b"1000000000000001d\r\n" + BODY + b"\r\n0\r\n\r\n"),
        *(chunked(size + b"\r\n" + BODY + b"\r\n0\r\n\r\n") for size in (b"0x1d", b"-1d", b"+1d", b" 1d", b"1d ", b"")),
        chunked(b"1d\n" + BODY + b"\n0\n\n"),
        chunked(b"1d;a=b\n" + BODY + b"\r\n0\r\n\r\n"),
        chunked(b"1d;a=b\rc\r\n" + BODY + b"\r\n0\r\n\r\n"),
        chunked(b"1d\r\n" + BODY + b"0\r\n\r\n"),
        chunked(b"1d\r\n" + BODY + b"zz\r\n0\r\n\r\n"),
        chunked(b"1d\r\n" + BODY + b"\r\n0\n\r\n"),
    ),
    *taken(
        "extensions mean nothing",
        chunked(b"1d;a=b\r\n" + BODY + b"\r\n0\r\n\r\n"),
        chunked(b'1d;a="b"\r\n' + CHUNKS[4:]),
    ),
    *taken("trailers are dropped", chunked(CHUNKS[:-2] + b"X-A: b\r\n\r\n")),
    *refused(
        "a trailer has no say in where the body ends",
        chunked(CHUNKS[:-2] + b"Content-Length: 30\r\n\r\n"),
        chunked(CHUNKS[:-2] + CHUNKED + b"\r\n"),
    ),
    *refused(
        "only HTTP/1.0 and HTTP/1.1 are spoken",
        b"GET /version\r\n\r\n",
        *(
            GET.replace(b"HTTP/1.1", each) + b"\r\n"
            for each in (b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/11", b"ICY/1.1")
        ),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 50,
    ),
    *refused(
        "HTTP/1.0 has no codings (RFC 9112, 6.1)", POST_10 + b"Connection: keep-alive\r\n" + CHUNKED + b"\r\n" + CHUNKS
    ),
    *refused("the same", POST_10 + CHUNKED + b"\r\n" + CHUNKS),
    Case(
        POST_10 + b"Connection: keep-alive\r\n" + LENGTH + b"\r\n" + BODY,
        (200,),
        "one request of HTTP/1.0 a connection",
    ),
    Case(GET + b"Connection: close\r\n\r\n", (200,), "the client has said that nothing follows"),
    *refused(
        "one Host, which is one (RFC 9112, 3.2)",
        b"GET /version HTTP/1.1\r\n\r\n",
        headed(b"Host: x"),
        headed(b"Host: y"),
        *(
            b"GET /version HTTP/1.1\r\nHost: %s\r\n\r\n" % host
            for host in (b"a b", b"x/y", b"u@x", b"x:y", b"[x]", b"x, y")
        ),
    ),
    *refused(
        "a target is a path, or a URL that agrees with Host",
        *(
            NEXT.replace(b"/version", b"http://%s" % rest)
            for rest in (b"evil/version", b"u@x/version", b"x#/version", b"x", b"x?y", b"")
        ),
        *(
            NEXT.replace(b"/version", target)
            for target in (b"version", b"/version#x", b"/ver sion", b"/\xff", b"ftp://x/")
        ),
        b"CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n",
    ),
    *taken("a URL that agrees with Host", NEXT.replace(b"/version", b"http://X/version")),
    Case(NEXT.replace(b"/version", b"//evil.example/version"), (404, 200), "a path with an empty part, no host"),
    *refused("no method", NEXT.lower(), b"FOO" + NEXT[3:], b" " + NEXT, NEXT.replace(b" ", b"\t")),
    *taken(
        "empty lines before a request are passed over (RFC 9112, 2.2)",
        b"\r\n\r\n" + NEXT,
        POST + LENGTH + b"\r\n" + BODY + b"\r\n",
    ),
    *taken(
        "another protocol that is offered is not taken, and the request is served as it is (RFC 9110, 7.8)",
        headed(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
        headed(b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
        POST + LENGTH + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + BODY,
        POST + CHUNKED + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + CHUNKS,
    ),
    Case(
        POST + LENGTH + b"\r\n" + BODY + b"X",
        (200,),
        "what follows a body is a request, and this one is none",
        late=(400,),
    ),
    Case(sized(b" 28"), (400,), "the body ends earlier than it should, and is none; the rest is no request", (400,)),
    Case(GET + b"Content-Length: %d\r\n\r\n" % len(NEXT) + NEXT, (200, 200), "a body that nobody reads is no request"),
    Case(
        NEXT.replace(b"/version", b"/v1/completions")[:-2] + b"Content-Length: %d\r\n\r\n" % len(NEXT) + NEXT,
        (405, 200),
        "the same",
    ),
]


@pytest.fixture(scope="module")
def address(tokenizer: Tokenizer) -> Iterator[tuple[str, int]]:
    with running(create_app(ScriptedEngine(tokenizer.table, [5, 6]), tokenizer)) as url:
        host, port = url.removeprefix("http://").split(":")
        yield host, int(port)


def answers(address: tuple[str, int], pieces: list[bytes], last: bool) -> bytes:
    """All that comes back; with `last`, the server is asked to close behind it."""
    with socket.create_connection(address, timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        came = b""
        try:
            for piece in pieces:
                connection.sendall(piece)
            if last:
                connection.sendall(GET + b"Connection: close\r\n\r\n")
            while data := connection.recv(1 << 16):
                came += data
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was refused while there was more to send
        return came


@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case.sent)[:60])
def test_each_has_one_reading(address: tuple[str, int], case: Case, bytewise: bool) -> None:
    sent = case.sent if case.stays_open else case.sent + NEXT
    pieces = [sent[place : place + 1] for place in range(len(sent))] if bytewise else [sent]
    came = answers(address, pieces, last=case.stays_open)
    statuses = tuple(map(int, re.findall(rb"HTTP/1\.1 (\d+) ", came)))
    if bytewise and not case.stays_open and not statuses:
        return  # the answer can be lost where the client goes on sending
    if bytewise and len(statuses) > len(case.statuses):
        assert statuses == (*case.early, *case.statuses, *case.late), case.why
        return
    assert statuses == case.statuses, case.why
    if statuses == (400,):
        assert b'"code":"invalid_request"' in came and b"connection: close" in came.lower()


@pytest.mark.parametrize("wrong", [b"X", NEXT.replace(b"/version", b"http://x"), GET + b"X: " + b"a" * 70_000])
def test_what_follows_a_request_does_not_take_its_answer(address: tuple[str, int], wrong: bytes) -> None:
    whole = POST + LENGTH + b"\r\n" + BODY
    for pieces in ([whole + wrong + NEXT], [whole, wrong + NEXT]):
        came = answers(address, pieces, last=False)
        assert came.startswith(b"HTTP/1.1 200 ") and came.count(b"HTTP/1.1 200 ") == 1


def test_heads_that_tell_where_the_request_belongs() -> None:
    sound = [(b"host", b"[::1]:8000")]
    check_head(b"GET", b"/x", "1.1", sound)
    check_head(b"OPTIONS", b"*", "1.1", sound)
    check_head(b"GET", b"https://[::1]:8000/?x", "1.1", sound)
    check_head(b"GET", b"/x", "1.0", [])
    for target in (b"https://[::1]/", b"https://::1", b"https:/x", b"", b"x"):
        with pytest.raises(RequestError):
            check_head(b"GET", target, "1.1", sound)
