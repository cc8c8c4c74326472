"""Files that figures are written to, and texts read from."""

import os
from pathlib import Path

from penstock.core.errors import ConfigurationError
from penstock.core.text_files import decoded


def check_writable(file: Path) -> None:
    """Raise ConfigurationError where the figures could not be written after a long measurement."""
    if not file.parent.is_dir():
        raise ConfigurationError(f"--json {file}: there is no directory {file.parent}.")
    if file.is_dir():
        raise ConfigurationError(f"--json {file} is a directory; give the name of a file.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigurationError(f"--json {file} cannot be written to; give a file that can.")


def read_text(file: Path, option: str) -> str:
    """The text in a file that an option names. Raises ConfigurationError where there is none."""
    try:
        return decoded(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{option} {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{option} {file} is not UTF-8.") from None
    except ValueError as error:
        raise ConfigurationError(f"{option} {file} cannot be read: {error}.") from None
