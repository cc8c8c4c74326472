"""What `penstock cache explain` and `export` do: say what is there of prompts, and copy it for other machines."""

import json
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Column, Table

from penstock.assembly.disk import SECRET, parts_in, slots_of
from penstock.assembly.exporting import Exported, exported
from penstock.assembly.inputs import prompt_tokens
from penstock.assembly.kept_prefixes import Absent, PromptKept, kept_prefixes
from penstock.assembly.prepare import Prepared, prepare
from penstock.cli.cache import folder_of, read_prompts
from penstock.configuration.options import EngineOptions
from penstock.core.errors import ConfigurationError, PenstockError
from penstock.llm import chat_encoder

_WHY: dict[Absent, str] = {
    "short": "all whole blocks are there",
    "absent": "what follows was never written, or has been evicted with all behind it",
    "evicted": "a block was evicted, or not written, and others behind it are there",
    "damaged": "a file is damaged: the server computes from there on",
}


def run_explain(
    computing: dict[str, Any], file: Path, chat_template: str | None, export: Path | None, *, as_json: bool
) -> None:
    """Say of each prompt of a file how much of it is kept, and why no more; and copy that to `export`.

    Raises ConfigurationError where there is nothing for this model, StartupError.
    """
    folder = _asked_folder(computing)
    asked = read_prompts(file)
    prepared = prepare(EngineOptions.of(**computing), api_beside=False)
    encode = _Encoding(prepared, file, chat_template)
    kept = kept_prefixes(prepared, folder)
    found, slots = list[PromptKept](), dict[tuple[int, bytes], None]()
    for each in asked:
        told, needed = kept.look(each["line"], encode(each))
        found.append(told)
        slots |= dict.fromkeys(needed)
    copied = None if export is None else exported(kept.own, slots, export)
    if as_json:
        print(json.dumps([msgspec.to_builtins(each) for each in found], indent=1))
    else:
        _show(found)
    if copied is not None and export is not None and not as_json:
        _tell(copied, folder, export)


def run_export(folder: Path, target: Path, name: str | None) -> None:
    """Copy a part of a folder. Raises ConfigurationError where it is not clear which, or cannot be copied."""
    parts = parts_in(folder)
    chosen = [part for part in parts if name in (None, part.name)]
    if len(chosen) != 1:
        names = ", ".join(f"{part.name} ({part.about.model})" for part in parts) or "nothing"
        wanted = f"no part {name!r}" if name is not None else f"{len(parts)} parts; give one with --name"
        raise ConfigurationError(f"{folder} has {wanted}; it has {names}.")
    own = folder / chosen[0].name
    _tell(exported(own, [slot for slot, _ in slots_of(own)], target), folder, target)


def _asked_folder(computing: dict[str, Any]) -> Path:
    if computing["kv_disk"] is not None:
        return Path(computing["kv_disk"]).expanduser()
    if computing["kv_store"] is not None:
        return folder_of(computing["kv_store"])
    raise ConfigurationError("penstock cache explain needs the folder of the server: --kv-disk DIR, or --kv-store URL.")


class _Encoding:
    """Makes tokens of prompts."""

    def __init__(self, prepared: Prepared, file: Path, chat_template: str | None) -> None:
        self._tokenizer = prepared.load_tokenizer()
        self._template, self._file = chat_template, file

    def __call__(self, asked: dict[str, Any]) -> list[int]:
        try:
            if "prompt" in asked:
                return prompt_tokens(asked["prompt"], self._tokenizer)
            if self._tokenizer is None:
                raise ConfigurationError("the model has no tokenizer, so that messages cannot be read.")
            return chat_encoder(self._tokenizer, self._template).encode(asked["messages"])
        except PenstockError as error:
            raise ConfigurationError(f"Line {asked['line']} of {self._file}: {error.message}") from error


def _show(found: list[PromptKept]) -> None:
    table = Table("line", "tokens", "there", Column("why no more", overflow="fold"), box=None)
    for each in found:
        damaged = f" ({each.damaged:,} files)" if each.damaged else ""
        table.add_row(str(each.line), f"{each.tokens:,}", f"{each.there:,}", _WHY[each.why] + damaged)
    Console().print(table)
    tokens, there = sum(each.tokens for each in found), sum(each.there for each in found)
    print(f"{there:,} of {tokens:,} tokens are there.")


def _tell(copied: Exported, folder: Path, target: Path) -> None:
    print(f"{copied.files:,} files of {copied.size / 2**20:,.1f} MiB are in {target}.")
    if copied.there:
        print(f"{copied.there:,} files were there already.")
    if copied.gone:
        print(f"{copied.gone:,} files were evicted meanwhile.")
    if (folder / SECRET).is_file():
        print(f"They can be read with the secret that wrote them, which is not copied: {folder / SECRET}.")
