"""Files that figures are written to."""

import os
from pathlib import Path

from penstock.core.errors import ConfigurationError


def check_writable(file: Path) -> None:
    """Raise ConfigurationError where the figures could not be written after a long measurement."""
    if not file.parent.is_dir():
        raise ConfigurationError(f"--json {file}: there is no directory {file.parent}.")
    if file.is_dir():
        raise ConfigurationError(f"--json {file} is a directory; give the name of a file.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigurationError(f"--json {file} cannot be written to; give a file that can.")
