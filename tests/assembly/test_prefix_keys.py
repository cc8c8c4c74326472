"""Keys of prefixes: the same in all processes with the same secret, weights and options, and in no others."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.assembly.prefix_keys import prefix_keys, shared_secret
from penstock.assembly.prepare import prepare
from penstock.configuration.options import EngineOptions
from penstock.core.errors import ConfigurationError
from penstock.core.handover import PREFIX_SECRET
from penstock.loading import fingerprint as fingerprints
from support.checkpoints import make
from support.prefix_keys import keys

SECRET = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture
def secret(tmp_path: Path) -> str:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    return str(file)


def changed(checkpoint: Path, folder: Path) -> Path:
    """A copy in which one byte of one weight is another."""
    other = shutil.copytree(checkpoint, folder / "changed")
    (file,) = other.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    return other


def test_equal_weights_have_equal_keys_wherever_they_lie(checkpoint: Path, secret: str, tmp_path: Path) -> None:
    mine = keys(checkpoint, prefix_secret_file=secret)
    assert len(mine) == 2
    assert keys(shutil.copytree(checkpoint, tmp_path / "copy"), prefix_secret_file=secret) == mine
    # In another process, too, which has the secret in its environment and keeps the fingerprint.
    program = f"from support.prefix_keys import *; print(*map(bytes.hex, keys(Path({str(checkpoint)!r}))))"
    printed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).resolve().parents[1],
        env={"PATH": "", PREFIX_SECRET: SECRET},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert printed == [key.hex() for key in mine]


def test_whatever_keys_and_values_depend_on_changes_all_keys(
    checkpoint: Path, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        keys(checkpoint, prefix_secret_file=secret),
        keys(checkpoint, "salt", prefix_secret_file=secret),
        keys(changed(checkpoint, tmp_path), prefix_secret_file=secret),
        keys(checkpoint, prefix_secret_file=secret, dtype="bfloat16"),
        keys(checkpoint, prefix_secret_file=secret, quantization="int8"),
        keys(checkpoint, prefix_secret_file=secret, kv_cache_dtype="int8"),
        # Without a secret that is shared, each start has its own.
        keys(checkpoint),
        keys(checkpoint),
    ]
    monkeypatch.setenv(PREFIX_SECRET, SECRET[::-1])
    found.append(keys(checkpoint))
    for index in range(2):
        assert len({each[index] for each in found}) == len(found)


def test_blocks_have_one_form_where_secret_and_weights_are_the_same(
    checkpoint: Path, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.write_text(SECRET[::-1])

    def form(model: Path, file: str, role: str) -> str:
        asked = EngineOptions.of(model=str(model), threads=1, packed_cache="off", prefix_secret_file=file, role=role)
        prepared = prepare(asked, api_beside=False)
        return prefix_keys(prepared.config, prepared.checkpoint, "this").form

    mine = form(checkpoint, secret, "prefill")
    assert mine == form(checkpoint, secret, "decode") != ""
    assert mine not in (form(checkpoint, str(other), "decode"), form(changed(checkpoint, tmp_path), secret, "decode"))


def test_contents_are_read_once(checkpoint: Path, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint is kept beside the packed weights, as long as the files are the same."""
    folder = tmp_path / "packed"
    model = shutil.copytree(checkpoint, tmp_path / "model")
    first = keys(model, prefix_secret_file=secret, packed_cache=str(folder))
    (kept,) = folder.glob("*.fingerprint")
    read: list[object] = []
    monkeypatch.setattr(fingerprints, "_hash_piece", lambda piece: read.append(piece) or b"")
    assert keys(model, prefix_secret_file=secret, packed_cache=str(folder)) == first and not read
    monkeypatch.undo()
    # One that was cut off, or written by somebody else, is made anew.
    kept.write_text("beef")
    assert keys(model, prefix_secret_file=secret, packed_cache=str(folder)) == first
    assert kept.read_text() != "beef"
    (file,) = model.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    assert keys(model, prefix_secret_file=secret, packed_cache=str(folder)) != first


def test_a_secret_that_cannot_be_used_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / "short"
    short.write_text("too short\n")
    with pytest.raises(ConfigurationError, match=r"short has 9 bytes; it must have at least 32, which `openssl"):
        shared_secret(str(short))
    with pytest.raises(ConfigurationError, match=r"none cannot be read: No such file or directory\."):
        shared_secret(str(tmp_path / "none"))
    monkeypatch.setenv(PREFIX_SECRET, SECRET)
    assert shared_secret(None)[0] is not None
    with pytest.raises(ConfigurationError, match="are both given; give one of them"):
        shared_secret(str(short))
