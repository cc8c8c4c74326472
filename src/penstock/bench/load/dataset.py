"""Prompts of one's own, from a JSONL file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.text_files import without_mark


class Row(msgspec.Struct, frozen=True):
    """One line of the file, which may have other fields beside these.

    Attributes:
        prompt: a text or token ids.
        messages: a chat, instead of a prompt.
        output_length: most tokens of the answer; without it, what the command says.
    """

    prompt: str | tuple[int, ...] | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    output_length: int | None = None


def read_dataset(path: Path, chat: bool) -> Iterator[Row]:
    """The rows, one at a time. Raises ConfigurationError, naming the line, where the endpoint does not take one."""
    decoder, number, found = msgspec.json.Decoder(Row), 0, False
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = without_mark(line)
                if line.strip():
                    found = True
                    yield _checked(decoder.decode(line), chat)
    except OSError as error:
        raise ConfigurationError(f"--dataset {path} cannot be read: {error.strerror}.") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigurationError(f"--dataset {path}, line {number}: {str(error).rstrip('.')}.") from None
    if not found:
        raise ConfigurationError(f"--dataset {path} has no prompts.")


def _checked(row: Row, chat: bool) -> Row:
    if (row.prompt is None) == (row.messages is None):
        raise ValueError('it needs either "prompt" or "messages"')
    if row.output_length is not None and row.output_length < 1:
        raise ValueError('"output_length" must be 1 or more')
    if not chat and row.messages is not None:
        raise ValueError('it has "messages", which /v1/completions does not take; add --endpoint chat')
    if chat and isinstance(row.prompt, tuple):
        raise ValueError("it has token ids, which /v1/chat/completions does not take; use --endpoint completions")
    return row
