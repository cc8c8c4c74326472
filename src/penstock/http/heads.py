"""What must hold of a request's head beyond the parser's rules, so that no proxy on the way can read it otherwise.

A proxy that reads one request where this server reads two, or another host, lets strangers in. So what allows two
readings is refused; the parser itself refuses folded lines, bare line ends, odd lengths, and a length beside chunks.
"""

import re
from collections.abc import Sequence

from penstock.core.errors import RequestError

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, and their values."""

_HOST = re.compile(rb"(?:[\w.~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::\d{0,5})?", re.ASCII)
_ABSOLUTE = re.compile(rb"https?://([^/?#]+)(?=/)", re.IGNORECASE)


def check_head(method: bytes, target: bytes, version: str, headers: Headers) -> None:
    """Raise RequestError where the head has no meaning, or more than one."""
    if version not in ("1.0", "1.1"):
        raise RequestError("This server speaks HTTP/1.1; send the request in that version.")
    if method == b"CONNECT":
        raise RequestError("This server is no proxy: CONNECT has no meaning here.")
    _check_coding([value for name, value in headers if name == b"transfer-encoding"], version)
    _check_target(target, _host([value for name, value in headers if name == b"host"], version))


def _check_coding(codings: Sequence[bytes], version: str) -> None:
    if not codings:
        return
    if [coding.strip(b" \t").lower() for coding in codings] != [b"chunked"]:
        raise RequestError("The only transfer coding of this server is one 'Transfer-Encoding: chunked'.")
    if version == "1.0":
        raise RequestError("HTTP/1.0 has no transfer codings; send Content-Length, or HTTP/1.1.")


def _host(hosts: Sequence[bytes], version: str) -> bytes:
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        raise RequestError(f"The request has {len(hosts)} Host headers; send one.")
    host = hosts[0].strip(b" \t") if hosts else b""
    if _HOST.fullmatch(host) is None:
        raise RequestError("The Host header is no host with a port.")
    return host


def _check_target(target: bytes, host: bytes) -> None:
    if b"#" in target:
        raise RequestError("The request's target has a fragment, which is never sent.")
    if target.startswith(b"/") or target == b"*":
        return
    absolute = _ABSOLUTE.match(target)
    if absolute is None or absolute[1].lower() != host.lower():
        raise RequestError("The request's target must be a path, or a URL with a path and the host of the Host header.")
