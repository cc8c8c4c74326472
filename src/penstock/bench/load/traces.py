"""Traces of real services: when requests came and how long they were, without their text.

Two formats are read, a request at a time, so that a trace may be larger than memory: CSV files of the Azure LLM
inference traces (TIMESTAMP, ContextTokens, GeneratedTokens), and JSONL files of the Mooncake traces (timestamp in
milliseconds, input_length, output_length, hash_ids).
"""

import csv
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from penstock.core.errors import ConfigurationError
from penstock.core.text_files import without_mark

# Tokens that one of Mooncake's hash_ids stands for.
BLOCK_TOKENS = 512


def scaled(tokens: int, scale: float) -> int:
    """A length of a trace, multiplied; at least one token."""
    return max(1, round(tokens * scale))


def check_length_scale(scale: float) -> None:
    """Raise ConfigurationError where lengths cannot be multiplied with it."""
    if not 0 < scale <= 1000:
        raise ConfigurationError(f"--length-scale {scale:g} is no factor; 0.25 makes lengths a quarter.")


class TraceRequest(msgspec.Struct, frozen=True):
    """One request of a trace.

    Attributes:
        at: seconds after the trace's first request.
        prompt, output: tokens.
        hash_ids: identities of the prompt's blocks of 512 tokens; the last block may be shorter. Prompts that begin
            with the same ones begin with the same tokens. Empty where the trace does not say.
    """

    at: float
    prompt: int
    output: int
    hash_ids: tuple[int, ...] = ()


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path, option: str = "--trace") -> Iterator[TraceRequest]:
    """The requests of a file, by its suffix .csv or .jsonl. Raises ConfigurationError, naming option and line."""
    readers = {".csv": _read_azure, ".jsonl": _read_mooncake}
    if path.suffix not in readers:
        raise ConfigurationError(f"{option} {path}: traces are .csv (Azure's columns) or .jsonl (Mooncake's fields).")
    start, last = None, 0.0
    try:
        for line, (time, prompt, output, hash_ids) in readers[path.suffix](path):
            start = time if start is None else start
            if time - start < last:
                raise _LineError(line, "its time is before that of the request above it; sort the trace by time")
            if prompt < 0 or output < 0 or any(identity < 0 for identity in hash_ids):
                raise _LineError(line, "a length is negative")
            last = time - start
            yield TraceRequest(last, prompt, output, hash_ids)
    except OSError as error:
        raise ConfigurationError(f"{option} {path} cannot be read: {error.strerror}.") from None
    except _LineError as error:
        raise ConfigurationError(f"{option} {path}, line {error.line}: {error}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{option} {path} is no text in CSV: {error}.") from None
    if start is None:
        raise ConfigurationError(f"{option} {path} has no requests.")


class _LineError(Exception):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


_Record = tuple[int, tuple[float, int, int, tuple[int, ...]]]


def _read_azure(path: Path) -> Iterator[_Record]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        for row in rows:
            try:
                time = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
                yield rows.line_num, (time, int(row["ContextTokens"]), int(row["GeneratedTokens"]), ())
            except KeyError as missing:
                raise _LineError(1, f"there is no column {missing.args[0]}") from None
            except (TypeError, ValueError):
                wanted = "a time, and whole numbers in ContextTokens and GeneratedTokens"
                raise _LineError(rows.line_num, f"it does not have {wanted}") from None


def _read_mooncake(path: Path) -> Iterator[_Record]:
    decoder = msgspec.json.Decoder(_MooncakeLine)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = without_mark(line)
            if not line.strip():
                continue
            try:
                entry = decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise _LineError(number, str(error)) from None
            yield number, (entry.timestamp / 1000, entry.input_length, entry.output_length, entry.hash_ids)
