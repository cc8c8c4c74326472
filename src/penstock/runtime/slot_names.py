"""What the values of slots are called in stores, and where the file of a slot is in its folder."""

from pathlib import Path

from penstock.cache.shelf_room import TAG_BYTES, Name

# What a folder is of.
ABOUT = "about.json"
# Files lie in folders that have the first two digits of their prefixes' keys.
FILES = "??/*"
_ENDING = ".kv"
# Of a tenant's tag and a prefix's key.
KEY_BYTES = TAG_BYTES + 16


def text_of(name: Name) -> str:
    """What a slot is called."""
    group, key = name
    return f"{key.hex()}-{group}"


def slot_called(text: str) -> Name | None:
    """The slot that is called so; None where none is."""
    key, _, group = text.partition("-")
    try:
        name = int(group), bytes.fromhex(key)
    except ValueError:
        return None
    return name if len(name[1]) == KEY_BYTES else None


def path_of(folder: Path, name: Name) -> Path:
    """The file of a slot, there or not."""
    text = text_of(name)
    return folder / text[2 * TAG_BYTES :][:2] / f"{text}{_ENDING}"


def name_of(path: Path) -> Name | None:
    """The slot that a file is of; None for files of other names."""
    return slot_called(path.stem) if path.suffix == _ENDING else None
