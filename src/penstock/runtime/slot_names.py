"""Where the file of a slot is in its folder, and which slot a file is of."""

from pathlib import Path

from penstock.cache.shelf_room import TAG_BYTES, Name

# Tenants' files lie in folders that have their tags, and in these in folders that have the first two digits of keys.
FILES = "*/??/*"
_ENDING = ".kv"


def path_of(folder: Path, name: Name) -> Path:
    """The file of a slot, there or not."""
    group, key = name
    text = key[TAG_BYTES:].hex()
    return folder_of(folder, key[:TAG_BYTES]) / text[:2] / f"{text}-{group}{_ENDING}"


def folder_of(folder: Path, tag: bytes) -> Path:
    """Where a tenant's files are, if there are any."""
    return folder / tag.hex()


def name_of(path: Path) -> Name | None:
    """The slot that a file is of; None for files of other names."""
    key, _, group = path.stem.partition("-")
    if path.suffix != _ENDING:
        return None
    try:
        return int(group), bytes.fromhex(path.parent.parent.name + key)
    except ValueError:
        return None
