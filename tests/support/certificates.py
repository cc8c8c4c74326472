"""Self-signed certificates, made by the openssl command."""

import shutil
import subprocess
from pathlib import Path

import pytest

from support.waiting import PATIENCE

_AUTHORITY = """
[ca]
default_ca = own
[own]
new_certs_dir = {folder}
database = {folder}/index
rand_serial = yes
default_md = sha256
policy = any
[any]
commonName = supplied
[extensions]
subjectAltName = DNS:localhost,IP:127.0.0.1
"""


def make_certificate(folder: Path, begins: str = "20200101000000Z", ends: str = "20990101000000Z") -> tuple[Path, Path]:
    """A certificate of this machine, and its key; the test is skipped where nothing makes them."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command here")
    folder.mkdir()
    certificate, key, request, settings = (folder / name for name in ("cert.pem", "key.pem", "request", "settings"))
    settings.write_text(_AUTHORITY.format(folder=folder))
    (folder / "index").write_text("")
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost"]
    openssl("req", "-new", *new, "-keyout", key, "-out", request)
    sign = ["-selfsign", "-batch", "-notext", "-extensions", "extensions", "-startdate", begins, "-enddate", ends]
    openssl("ca", *sign, "-config", settings, "-keyfile", key, "-in", request, "-out", certificate)
    return certificate, key


def openssl(*arguments: object) -> None:
    """Run the command."""
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
