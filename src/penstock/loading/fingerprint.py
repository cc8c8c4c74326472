"""What a checkpoint's weights are, as a digest of their contents.

It says whether two processes compute with the same weights, wherever their files lie and whatever they are called. So
that it is read once only, it is kept beside the packed weights, under a name that stands for the files' identities.
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.loading.cache_folder import written_whole
from penstock.loading.checkpoint import Checkpoint
from penstock.loading.safetensors import TensorEntry

# Raise it where the same contents get another digest.
_VERSION = 1
_PIECE = 16 << 20
_DIGEST = 32
_SUFFIX = ".fingerprint"


def fingerprint(checkpoint: Checkpoint, folder: Path | None, threads: int) -> bytes:
    """32 bytes that follow from names, types, shapes and bytes of all tensors.

    Args:
        folder: where it is kept for the next start; None: nowhere.
        threads: how many read and hash at a time.

    Raises OSError where a file of the checkpoint cannot be read.
    """
    entries = sorted(checkpoint.stored, key=lambda entry: entry.name)
    file = None if folder is None else folder / f"{_identity(entries)[:32]}{_SUFFIX}"
    if file is not None and (kept := _read(file)) is not None:
        return kept
    found = _of_contents(entries, threads)
    if file is not None:
        # A folder that cannot be written costs the next start the same time again, and nothing else.
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(file) as stream:
                stream.write(found.hex().encode())
    return found


def _identity(entries: Sequence[TensorEntry]) -> str:
    """What the files are, as the file system says."""
    files = {}
    for file in sorted({entry.file for entry in entries}):
        state = file.stat()
        files[str(file.resolve())] = (state.st_size, state.st_mtime_ns, state.st_ino)
    places = [[*_described(entry), entry.offset] for entry in entries]
    return hashlib.sha256(json.dumps([files, places]).encode()).hexdigest()


def _described(entry: TensorEntry) -> list[object]:
    return [
        _VERSION,
        entry.name,
        entry.dtype,
        entry.shape,
        entry.nbytes,
        str(entry.rows),
        entry.shift,
        entry.transposed,
    ]


def _of_contents(entries: Sequence[TensorEntry], threads: int) -> bytes:
    """A tree of two levels: pieces of tensors are hashed at the same time, and then all that came of them."""
    pieces = [
        (entry.file, entry.offset + first, min(_PIECE, entry.nbytes - first))
        for entry in entries
        for first in range(0, entry.nbytes, _PIECE)
    ]
    together = hashlib.blake2b(digest_size=_DIGEST)
    for entry in entries:
        together.update(json.dumps(_described(entry)).encode() + b"\0")
    with ThreadPoolExecutor(threads, "fingerprint") as pool:
        for digest in pool.map(_hash_piece, pieces):
            together.update(digest)
    return together.digest()


def _hash_piece(piece: tuple[Path, int, int]) -> bytes:
    file, offset, count = piece
    with file.open("rb") as stream:
        stream.seek(offset)
        content = stream.read(count)
    if len(content) != count:
        raise OSError(f"{file} ends before byte {offset + count}")
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()


def _read(file: Path) -> bytes | None:
    """What is kept there; None where it is not a digest."""
    try:
        kept = bytes.fromhex(file.read_text("ascii"))
    except (OSError, ValueError):
        return None
    return kept if len(kept) == _DIGEST else None
