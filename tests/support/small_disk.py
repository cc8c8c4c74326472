"""A disk of a few megabytes that can be filled, emptied and taken away."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import PATIENCE


class SmallDisk:
    """A tmpfs of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Leave not a single block free."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (65536, 4096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOSPC

    def empty(self) -> None:
        """Give back what `fill` took."""
        self._ballast.unlink(missing_ok=True)

    def used(self) -> int:
        """Bytes of what is on it, without what `fill` took."""
        state = os.statvfs(self.path)
        ballast = self._ballast.stat().st_blocks * 512 if self._ballast.exists() else 0
        return (state.f_blocks - state.f_bfree) * state.f_frsize - ballast


@contextlib.contextmanager
def small_disk(path: Path, size: str = "4m") -> Iterator[SmallDisk]:
    """Mount one at `path`; the test is skipped where this user cannot mount anything."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], timeout=PATIENCE, check=True)
