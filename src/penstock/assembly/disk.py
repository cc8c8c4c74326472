"""The disk beside the KV pool: its folder, its secret, and what it has of this model."""

import contextlib
import os
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from penstock.cache.shelf_room import Name, tag_in
from penstock.core.config import EngineConfig
from penstock.core.errors import ConfigurationError
from penstock.runtime.slot_files import SlotFiles
from penstock.runtime.slot_names import ABOUT, FILES, name_of
from penstock.runtime.tier import Backing

SECRET = "secret"
# The share of the folder that may be kept on request.
KEPT_OF_DISK = 0.5
# Raise it where files have another form: what others wrote is left to them.
LAYOUT = 1
_SECRET_BYTES = 32


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
    """All parts of a folder that can be read here, the largest first, or what these tenants have in them.

    Raises ConfigurationError where it keeps no prefixes, or none can be read here.
    """
    newer = check_folder(folder)
    parts = []
    for file in folder.glob(f"*/{ABOUT}"):
        # A part that is being removed, or was left in between, is none.
        if file.parent.name in newer:
            continue
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            about = msgspec.json.decode(file.read_bytes(), type=About)
            sizes = {name: path.stat().st_size for name, path in slots_of(file.parent, tags)}
            blocks = sum(group == 0 for group, _ in sizes)
            tenants = len({tag_in(name) for name in sizes})
            tokens = blocks * about.tokens_in_block
            parts.append(Part(file.parent.name, about, tokens, sum(sizes.values()), tenants))
    return sorted(parts, key=lambda part: (-part.size, part.name))


def check_folder(folder: Path) -> list[str]:
    """The parts of a folder that a newer release has written in another layout.

    Raises ConfigurationError, which says what would work, where it keeps no prefixes, or only such.
    """
    try:
        entries = sorted(entry.name for entry in os.scandir(folder))
    except FileNotFoundError:
        raise ConfigurationError(
            f"{folder} is not there; `penstock serve MODEL --kv-disk {folder}` makes it."
        ) from None
    except NotADirectoryError:
        raise ConfigurationError(f"{folder} is a file; give the folder of --kv-disk.") from None
    except PermissionError:
        raise ConfigurationError(
            f"{folder} belongs to another user and cannot be read; run this as the user of the server."
        ) from None
    if ABOUT in entries:
        raise ConfigurationError(f"{folder} is a part of a folder of --kv-disk; give {folder.parent}.")
    parts = [name for name in entries if (folder / name / ABOUT).is_file()]
    if SECRET not in entries and not parts:
        raise ConfigurationError(f"{folder} is no folder of --kv-disk or --kv-store; give the one that the server has.")
    newer = [name for name in parts if _layout_of(name) > LAYOUT]
    if newer and len(newer) == len(parts):
        raise ConfigurationError(
            f"{folder} was written by a newer release of Penstock, in layout {_layout_of(newer[0])}, and this one "
            f"reads layout {LAYOUT}; use that release, or give another folder."
        )
    return newer


def _layout_of(part: str) -> int:
    """The layout of a part, by the name of its folder."""
    number = part.partition("-")[0]
    return int(number) if number.isdecimal() else 0


def slots_of(own: Path, tags: Collection[bytes] | None = None) -> list[tuple[Name, Path]]:
    """The slots of a part, with their files, or those of these tenants."""
    found = [(name, path) for path in own.glob(FILES) if (name := name_of(path)) is not None]
    return [(name, path) for name, path in found if tags is None or tag_in(name) in tags]


def cleared(folder: Path, part: Part, tags: Collection[bytes] | None = None) -> None:
    """Remove a part, or what these tenants have in it: its files, and nothing else that may be there.

    Raises ConfigurationError where that fails.
    """
    own = folder / part.name
    try:
        for path in [*(path for _, path in slots_of(own, tags)), *([own / ABOUT] if tags is None else [])]:
            path.unlink(missing_ok=True)
        for inner in [*own.glob("??"), own] if tags is None else []:
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


def open_disk(config: EngineConfig, namespace: bytes) -> Backing | None:
    """The folder that keeps blocks of a model's pool; None where none does.

    Raises ConfigurationError where the folder cannot be used.
    """
    if config.cache.disk is None:
        return None
    folder = Path(config.cache.disk).expanduser()
    own = folder / f"{LAYOUT}-{namespace.hex()[:32]}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = SlotFiles(own, config.cache.disk_bytes, about=about(config))
        known = tuple(files.names())
    except OSError as error:
        raise ConfigurationError(f"--kv-disk {folder} cannot be used: {error.strerror}.") from error
    keeps = int(KEPT_OF_DISK * config.cache.disk_bytes)
    return Backing("disk", "--kv-disk", files, known, keeper=files, keeps=keeps, ahead=files.ahead)


def about(config: EngineConfig) -> bytes:
    """What is said of a part of a folder."""
    model = config.model
    found = About(model.path, model.dtype, model.quantization, config.cache.spec.block_size)
    return msgspec.json.format(msgspec.json.encode(found)) + b"\n"


@contextlib.contextmanager
def needing_extra(option: str, extra: str) -> Iterator[None]:
    """Raises ConfigurationError where what the block imports is not there."""
    try:
        yield
    except ImportError:
        raise ConfigurationError(f"{option} needs the extra {extra}: pip install 'penstock[{extra}]'.") from None
