"""The disk beside the KV pool: its folder, its secret, and what it has of this model."""

import contextlib
import os
import secrets
import threading
from collections.abc import Collection
from pathlib import Path

import msgspec

from penstock.cache.chain import KeyFunction
from penstock.cache.manager import KVCache
from penstock.cache.shelf import Shelf
from penstock.cache.shelf_room import TAG_BYTES, Name, tag_in
from penstock.core.config import EngineConfig
from penstock.core.errors import ConfigurationError
from penstock.core.kv import KVSpec
from penstock.runtime.disk_tier import DiskTier
from penstock.runtime.slot_names import FILES, name_of
from penstock.runtime.storage import KVStorage
from penstock.runtime.tiers import Tiers

SECRET, ABOUT = "secret", "about.json"
# Raise it where files have another form: what others wrote is left to them.
_LAYOUT = 2
_SECRET_BYTES = 32
# Of what the key is made with which files are encrypted.
_OF_FILES = b"files"
# Folders of tenants.
_TENANTS = "[0-9a-f]" * (2 * TAG_BYTES)
# Slots that may be on their way to the disk, by their bytes.
_MOST_WRITING = 256 << 20


class About(msgspec.Struct, frozen=True):
    """What the files of a part of the folder are of."""

    model: str
    dtype: str
    quantization: str
    tokens_in_block: int


class Part(msgspec.Struct, frozen=True):
    """What a folder has of one model in one form.

    Attributes:
        name: of its own folder.
        tokens: of all prefixes; what they share counts once.
        size: bytes of its files.
        tenants: how many have some of them.
    """

    name: str
    about: About
    tokens: int
    size: int
    tenants: int


def parts_in(folder: Path, tags: Collection[bytes] | None = None) -> list[Part]:
    """All parts of a folder, the largest first, or what these tenants have in them.

    Raises ConfigurationError where it is none of --kv-disk.
    """
    if not (folder / SECRET).is_file() and not list(folder.glob(f"*/{ABOUT}")):
        raise ConfigurationError(f"{folder} is no folder of --kv-disk.")
    parts = []
    for file in folder.glob(f"*/{ABOUT}"):
        # A part that is being removed, or was left in between, is none.
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            about = msgspec.json.decode(file.read_bytes(), type=About)
            sizes = {name: path.stat().st_size for name, path in _slots_of(file.parent, tags)}
            blocks = sum(group == 0 for group, _ in sizes)
            tenants = len({tag_in(name) for name in sizes})
            tokens = blocks * about.tokens_in_block
            parts.append(Part(file.parent.name, about, tokens, sum(sizes.values()), tenants))
    return sorted(parts, key=lambda part: (-part.size, part.name))


def _slots_of(own: Path, tags: Collection[bytes] | None) -> list[tuple[Name, Path]]:
    """The slots of a part, with their files, or those of these tenants."""
    found = [(name, path) for path in own.glob(FILES) if (name := name_of(path)) is not None]
    return [(name, path) for name, path in found if tags is None or tag_in(name) in tags]


def cleared(folder: Path, part: Part, tags: Collection[bytes] | None = None) -> None:
    """Remove a part, or what these tenants have in it: its files, and nothing else that may be there.

    Raises ConfigurationError where that fails.
    """
    own = folder / part.name
    try:
        for _, path in _slots_of(own, tags):
            path.unlink(missing_ok=True)
        if tags is None:
            (own / ABOUT).unlink(missing_ok=True)
        for inner in [*own.glob("*/??"), *own.glob(_TENANTS), *([own] if tags is None else [])]:
            # A server that runs may have written again.
            with contextlib.suppress(OSError):
                inner.rmdir()
    except OSError as error:
        raise ConfigurationError(f"{own} cannot be removed: {error.strerror}.") from error


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


def open_disk(config: EngineConfig, namespace: bytes, key_of: KeyFunction, pool: object) -> Tiers | None:
    """What is kept beyond a model's pool of its blocks; None where nothing is.

    Files are encrypted with a key that `key_of` makes: its secret, and the namespace of the model, must be the same for
    those who read them. Raises ConfigurationError where the folder cannot be used.
    """
    if config.cache.disk is None:
        return None
    assert isinstance(pool, KVStorage), "a GPU's blocks are not kept"
    try:
        # An extra: it needs what encrypts.
        from penstock.runtime.slot_files import SlotFiles
    except ImportError as error:
        raise ConfigurationError("--kv-disk needs the extra kv-disk: pip install 'penstock[kv-disk]'.") from error
    folder, spec = Path(config.cache.disk).expanduser(), config.cache.spec
    own = folder / f"{_LAYOUT}-{namespace.hex()[:32]}"
    try:
        files = SlotFiles(own, key_of(namespace, _OF_FILES), config.cache.disk_bytes)
        about = About(config.model.path, config.model.dtype, config.model.quantization, spec.block_size)
        (own / ABOUT).write_bytes(msgspec.json.format(msgspec.json.encode(about)) + b"\n")
    except OSError as error:
        raise ConfigurationError(f"--kv-disk {folder} cannot be used: {error.strerror}.") from error
    changed = threading.Condition()
    return Tiers({"disk": DiskTier("disk", files, pool, slot_bytes(spec), changed)}, changed)


def slot_bytes(spec: KVSpec) -> list[int]:
    """Bytes of a slot of each group."""
    return [group.width * spec.block_bytes for group in spec.groups]


def put_on_shelves(cache: KVCache, tiers: Tiers | None) -> None:
    """Have what the cache publishes written to the tiers, if there are some, and what it has lost read from there."""
    if tiers is None:
        return
    most = max(1, _MOST_WRITING // max(slot_bytes(cache.spec)))
    cache.put_on([Shelf(name, cache.transfers, names, most) for name, names in tiers.names().items()])
