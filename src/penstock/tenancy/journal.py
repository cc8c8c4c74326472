"""A file that has what is not in the database yet: a gateway that is killed loses nothing of it."""

import contextlib
import fcntl
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.tenancy.entries import Entry

logger = logging.getLogger("penstock.gateway")

_decode = msgspec.json.Decoder(Entry).decode


class Journal:
    """Entries of the ledger, a line each, in a file that one gateway has at a time.

    What is written is there if the process ends in whatever way; if the machine does, the last second may be lost.
    """

    def __init__(self, file: int, path: Path) -> None:
        self._file, self._path = file, path
        self._works = True

    @classmethod
    def open(cls, folder: Path) -> tuple["Journal", list[Entry]]:
        """The first file in a folder that no other gateway has, and what is in it. Raises ConfigurationError."""
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for number in range(1000):
                path = folder / f"ledger-{number}.jsonl"
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(file)
                    continue
                return cls(file, path), _entries(path)
        except OSError as error:
            raise ConfigurationError(
                f"The ledger's journal in {folder} cannot be written ({error.strerror})."
            ) from error
        raise ConfigurationError(f"The folder {folder} has the journals of 1,000 gateways; use another one.")

    def add(self, entry: Entry) -> None:
        """Write one more entry down, before it is in the database."""
        self._write(msgspec.json.encode(entry) + b"\n")

    def keep(self, entries: Sequence[Entry]) -> None:
        """Only these are not in the database yet."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
        if entries:
            self._write(b"".join(msgspec.json.encode(each) + b"\n" for each in entries))

    def refuse(self, entry: Entry, why: str) -> None:
        """Put an entry aside, for people to look at, which the database will never take."""
        with self._path.with_suffix(".refused.jsonl").open("ab") as file:
            file.write(msgspec.json.encode({"why": why, "entry": entry}) + b"\n")

    def close(self) -> None:
        """Let another gateway have it."""
        os.close(self._file)

    def _write(self, content: bytes) -> None:
        try:
            os.write(self._file, content)
            self._works = True
        except OSError as error:
            if self._works:
                logger.error(
                    "%s cannot be written (%s): what is not in the database is in memory only", self._path, error
                )
            self._works = False


def _entries(path: Path) -> list[Entry]:
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            found.append(_decode(line))
        except msgspec.DecodeError:
            # The last line of one that was killed as it wrote.
            logger.error("%s, line %d is no entry of the ledger: %r", path, number, line[:80])
    return found
