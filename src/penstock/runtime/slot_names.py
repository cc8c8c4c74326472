"""Where the file of a slot is in its folder, and which slot a file is of."""

from pathlib import Path

Name = tuple[int, bytes]
"""A slot: its group, and the key of the prefix that it ends."""

# Files lie in folders that have the first two digits of their keys.
FILES = "??/*"
_ENDING = ".kv"


def path_of(folder: Path, name: Name) -> Path:
    """The file of a slot, there or not."""
    group, key = name
    text = key.hex()
    return folder / text[:2] / f"{text}-{group}{_ENDING}"


def name_of(path: Path) -> Name | None:
    """The slot that a file is of; None for files of other names."""
    key, _, group = path.stem.partition("-")
    if path.suffix != _ENDING:
        return None
    try:
        return int(group), bytes.fromhex(key)
    except ValueError:
        return None
