"""The disk beside the KV pool: its folder, its secret, and what it has of this model."""

import json
import os
import secrets
from pathlib import Path

from penstock.cache.manager import KVCache
from penstock.cache.shelf import Shelf
from penstock.core.config import EngineConfig
from penstock.core.errors import ConfigurationError
from penstock.core.kv import KVSpec
from penstock.runtime.disk_tier import DiskTier
from penstock.stepping.storage import Slots

SECRET, ABOUT = "secret", "about.json"
# Raise it where files have another form: what others wrote is left to them.
_LAYOUT = 1
_SECRET_BYTES = 32
# Slots that may be on their way to the disk, by their bytes.
_MOST_WRITING = 256 << 20


def disk_secret(folder: Path) -> bytes:
    """The secret of a folder, which is made where there is none, and so is the folder.

    Raises ConfigurationError where it is another user's, or cannot be used.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise ConfigurationError(
                f"--kv-disk {folder} belongs to another user, who could read what clients have sent; give another one."
            )
        path = folder / SECRET
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            found = path.read_bytes()
        else:
            found = secrets.token_bytes(_SECRET_BYTES)
            with open(descriptor, "wb") as file:
                file.write(found)
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise ConfigurationError(f"--kv-disk {folder} cannot be used: {error.strerror}.") from error
    if len(found) != _SECRET_BYTES:
        raise ConfigurationError(
            f"--kv-disk {folder} has a file {SECRET} of {len(found)} bytes, which must have {_SECRET_BYTES}; remove "
            "the folder, or give another one."
        )
    return found


def open_disk(config: EngineConfig, namespace: bytes, file_key: bytes, pool: Slots) -> DiskTier:
    """What is kept of the blocks of a model's pool; files are encrypted with `file_key`.

    Raises ConfigurationError where the folder cannot be used.
    """
    try:
        # An extra: it needs what encrypts.
        from penstock.runtime.slot_files import SlotFiles
    except ImportError as error:
        raise ConfigurationError("--kv-disk needs the extra kv-disk: pip install 'penstock[kv-disk]'.") from error
    assert config.cache.disk is not None, "there is a folder"
    folder, spec = Path(config.cache.disk).expanduser(), config.cache.spec
    own = folder / f"{_LAYOUT}-{namespace.hex()[:32]}"
    try:
        files = SlotFiles(own, file_key, config.cache.disk_bytes)
        about = {
            "model": config.model.path,
            "dtype": config.model.dtype,
            "quantization": config.model.quantization,
            "tokens_in_block": spec.block_size,
        }
        (own / ABOUT).write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise ConfigurationError(f"--kv-disk {folder} cannot be used: {error.strerror}.") from error
    return DiskTier(files, pool, slot_bytes(spec))


def slot_bytes(spec: KVSpec) -> list[int]:
    """Bytes of a slot of each group."""
    return [group.width * spec.block_bytes for group in spec.groups]


def put_on_shelf(cache: KVCache, disk: DiskTier) -> None:
    """Have what the cache publishes written to the disk, and what the pool has lost read from there."""
    most = max(1, _MOST_WRITING // max(slot_bytes(cache.spec)))
    cache.put_on(Shelf(cache.transfers, disk.names, most))
