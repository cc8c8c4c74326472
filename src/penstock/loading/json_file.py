"""JSON files of a model's folder, and what to say of files that are something else than their names say."""

import json
from pathlib import Path
from typing import Any

from penstock.core.errors import ModelFileError
from penstock.core.text_files import HEAD, decoded, something_else


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in `file`; raises ModelFileError where it is missing or is none."""
    content = _read(file)
    if not isinstance(content, dict):
        raise ModelFileError(f"{file.name} must hold a JSON object.")
    return content


def read_json_list(file: Path) -> list[Any]:
    """The JSON list in `file`; raises ModelFileError where it is missing or is none."""
    content = _read(file)
    if not isinstance(content, list):
        raise ModelFileError(f"{file.name} must hold a JSON list.")
    return content


def _read(file: Path) -> Any:
    try:
        raw = file.read_bytes()
        content = json.loads(decoded(raw))
        # JSON can spell half of a surrogate pair, which is no text: a message that shows it could not be written.
        json.dumps(content, ensure_ascii=False).encode()
    except FileNotFoundError:
        raise ModelFileError(f"{file.parent} has no {file.name}; pass a directory with a complete model.") from None
    except OSError as error:
        raise ModelFileError(f"{file.name} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        other = something_else(raw[:HEAD])
        raise ModelFileError(f"{file.name} {other or f'is not valid JSON ({error})'}.") from None
    return content


def check_kind(file: Path) -> None:
    """Raise ModelFileError where the beginning of `file` shows that it is not what its name says.

    Raises OSError where it cannot be read.
    """
    with file.open("rb") as stream:
        other = something_else(stream.read(HEAD))
    if other is not None:
        raise ModelFileError(f"{file.name} {other}.")
