"""Files that figures are written to, as JSON, and texts read from."""

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.text_files import decoded, shown


def check_writable(file: Path, option: str = "--json") -> None:
    """Raise ConfigurationError where what an option names could not be written after a long measurement."""
    if not file.parent.is_dir():
        raise ConfigurationError(f"{option} {file}: there is no directory {file.parent}.")
    if file.is_dir():
        raise ConfigurationError(f"{option} {file} is a directory; give the name of a file.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigurationError(f"{option} {file} cannot be written to; give a file that can.")


def json_bytes(value: object) -> bytes:
    """Figures as JSON for people to read, whatever names of files are in them."""
    return msgspec.json.format(msgspec.json.encode(_printable(msgspec.to_builtins(value))), indent=1)


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, list | tuple) else value


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


def check_output(path: Path | None) -> None:
    """Raise ConfigurationError where what is asked for could not be written; "-" is standard output."""
    if path is not None and str(path) != "-":
        check_writable(path)


def write_json(value: object, path: Path) -> None:
    """Write figures to a file, or to standard output for "-"."""
    if str(path) == "-":
        sys.stdout.write(json_bytes(value).decode())
    else:
        path.write_bytes(json_bytes(value))
