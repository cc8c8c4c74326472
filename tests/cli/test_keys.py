"""`penstock key`, and the keys of `penstock serve`, which refuses to be open by accident."""

import re
import socket
import stat
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from penstock.access.keys import Keyring, parse_keys, read_keys
from support.checkpoints import make
from support.live_server import serving
from support.waiting import PATIENCE

KEY = re.compile(r"penstock-[A-Za-z0-9_-]{43}\n")
SECRET = "penstock-a-secret-of-this-test"


def assert_refused(result: "subprocess.CompletedProcess[str]", *says: str) -> None:
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("penstock: ")
    for fragment in says:
        assert fragment in line


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("qwen3", tmp_path_factory.mktemp("qwen3"))


def test_a_key_is_shown_once_and_its_entry_fits(penstock_here) -> None:
    result = penstock_here("key", "alice", "--weight", "2")
    assert result.returncode == 0 and KEY.fullmatch(result.stdout)
    key = result.stdout.strip()
    assert key not in result.stderr
    entry = result.stderr[result.stderr.index("[[key]]") : result.stderr.index("The key, which")]
    tenant = Keyring(parse_keys(entry.encode(), Path("x"))).find(key.encode())
    assert tenant is not None and (tenant.name, tenant.weight) == ("alice", 2.0)


def test_keys_are_added_to_a_file(tmp_path: Path, penstock_here) -> None:
    path = tmp_path / "keys.toml"
    keys = {name: penstock_here("key", name, "--add", str(path)).stdout.strip() for name in ("alice", "bob")}
    ring = Keyring(read_keys(path))
    assert ring.names == ["alice", "bob"]
    for name, key in keys.items():
        tenant = ring.find(key.encode())
        assert tenant is not None and tenant.name == name
        assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_text()
    assert_refused(penstock_here("key", "alice", "--add", str(path)), "Two API keys have the name 'alice'")
    assert_refused(penstock_here("key", "a b"), "must have 1 to 64 of")
    assert_refused(penstock_here("key", "carol", "--weight", "-1", "--add", str(path)), "weight is -1.0, outside")
    assert_refused(penstock_here("key", "carol", "--add", str(tmp_path)), "cannot be written")
    assert path.read_text() == before
    path.write_text(before.rstrip("\n"))
    assert penstock_here("key", "carol", "--add", str(path)).returncode == 0
    assert Keyring(read_keys(path)).names == ["alice", "bob", "carol"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_others_are_not_served_without_being_asked_for(host: str, penstock_here) -> None:
    if host == "::" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    result = penstock_here("serve", "haiku", "--host", host, "--port", "0")
    assert_refused(result, f"{host} can be reached from other machines", "--api-key-file", "--no-auth")


def test_keys_that_cannot_be(tmp_path: Path, penstock_here) -> None:
    path = tmp_path / "keys.toml"
    penstock_here("key", "default", "--add", str(path))
    assert_refused(penstock_here("serve", "--no-auth", PENSTOCK_API_KEY=SECRET), "--no-auth cannot be combined")
    assert_refused(penstock_here("serve", "--no-auth", "--api-key-file", str(path)), "--no-auth cannot be combined")
    assert_refused(penstock_here("serve", "--api-key-file", str(tmp_path / "x")), "cannot be read")
    both = penstock_here("serve", "--api-key-file", str(path), PENSTOCK_API_KEY=SECRET)
    assert_refused(both, "has a key named 'default'")
    for empty in (penstock_here("serve", PENSTOCK_API_KEY=""), penstock_here("serve", "--api-key", "-")):
        assert_refused(empty, "must have 1 to 512 visible ASCII characters")
    for result in (both, penstock_here("serve", "--api-key", f"{SECRET} x")):
        assert SECRET not in result.stdout + result.stderr


def test_keys_are_explained_by_name_only(checkpoint: Path, tmp_path: Path, penstock_here) -> None:
    path = tmp_path / "keys.toml"
    key = penstock_here("key", "alice", "--add", str(path)).stdout.strip()
    result = penstock_here(
        "serve", str(checkpoint), "--explain-config", "--api-key-file", str(path), "--api-key", "-", stdin=SECRET + "\n"
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"api keys +default, alice +every request", result.stdout)
    for secret in (SECRET, key):
        assert secret not in result.stdout + result.stderr
    result = penstock_here("serve", str(checkpoint), "--explain-config")
    assert re.search(r"api keys +none +none are given", result.stdout)


def status(url: str, key: str | None = None) -> int:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_server_on_all_addresses_with_a_key(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEY", SECRET)
    with serving(checkpoint, "--threads", "1", "--host", "0.0.0.0") as server:
        assert status(server.base + "/health/live") == 200
        assert [status(server.base + "/v1/models", key) for key in (None, "wrong", SECRET)] == [401, 401, 200]
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert children, "the engine has a process of its own"
        for child in children:
            assert "PENSTOCK_API_KEY" not in child.environ(), "no other process gets it"
            assert all(SECRET not in argument for argument in child.cmdline())


def test_a_server_that_is_open_as_asked(checkpoint: Path) -> None:
    with serving(checkpoint, "--threads", "1", "--host", "0.0.0.0", "--no-auth") as server:
        assert status(server.base + "/v1/models") == 200
