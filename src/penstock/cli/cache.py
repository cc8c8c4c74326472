"""What `penstock cache …` does: look into a folder of prefixes, clear it, and fill what keeps them."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Column, Table

from penstock.assembly.disk import cleared, parts_in
from penstock.assembly.prefix_keys import tags_in
from penstock.cli.files import read_text
from penstock.configuration.stores import parse_store
from penstock.core.errors import ConfigurationError, PenstockError
from penstock.core.events import ShelfTotals
from penstock.core.sampling import SamplingParams
from penstock.llm import LLM

# For what is to be written once all is computed, in seconds.
_LONGEST_FLUSH = 600.0


def folder_of(text: str) -> Path:
    """The folder that is asked for, by its name or its URL. Raises ConfigurationError where it is no folder."""
    if "://" not in text:
        return Path(text)
    store = parse_store(text)
    if store.kind != "folder":
        raise ConfigurationError(
            f"penstock cache looks into folders, and {store.shown} is none; use the store's own tools."
        )
    return Path(store.address)


def run_list(folder: Path, *, as_json: bool) -> None:
    """Print the parts of a folder. Raises ConfigurationError where it is none of --kv-disk or --kv-store."""
    parts = parts_in(folder)
    if as_json:
        print(json.dumps([msgspec.to_builtins(part) for part in parts], indent=1))
        return
    if not parts:
        print(f"{folder} has no prefixes.")
        return
    # Names are copied into other commands, so that they are never cut.
    names = Column("name", no_wrap=True), Column("model", overflow="fold")
    table = Table(*names, "weights", "tokens", "MiB", "tenants", box=None)
    for part in parts:
        weights = part.about.dtype if part.about.quantization == "none" else part.about.quantization
        figures = f"{part.tokens:,}", f"{part.size / 2**20:,.1f}", f"{part.tenants:,}"
        table.add_row(part.name, part.about.model, weights, *figures)
    Console().print(table)


def run_clear(folder: Path, name: str | None, tenant: str | None = None, secret_file: str | None = None) -> None:
    """Remove the parts of a folder, or one, or what a tenant has in them.

    Raises ConfigurationError where a part is not there, or what is the tenant's cannot be known.
    """
    if secret_file is not None and tenant is None:
        raise ConfigurationError("--prefix-secret-file is of use with --tenant only.")
    parts_in(folder)
    tags = None if tenant is None else tags_in(folder, tenant, secret_file)
    parts = parts_in(folder, tags)
    chosen = [part for part in parts if name in (None, part.name)]
    if name is not None and not chosen:
        known = ", ".join(part.name for part in parts) or "nothing"
        raise ConfigurationError(f"{folder} has no part {name!r}; it has {known}.")
    for part in chosen:
        cleared(folder, part, tags)
    size = sum(part.size for part in chosen)
    print(f"{size / 2**20:,.1f} MiB of {sum(part.tokens for part in chosen):,} tokens are removed.")


def run_warm(computing: dict[str, Any], file: Path, chat_template: str | None) -> None:
    """Compute all prompts of a file. Raises ConfigurationError where a line is none, StartupError."""
    if computing["kv_disk"] is None and computing["kv_store"] is None:
        raise ConfigurationError(
            "penstock cache warm needs what the server keeps prefixes in: --kv-disk DIR, or --kv-store URL."
        )
    if computing["kv_policy"] is not None:
        raise ConfigurationError("penstock cache warm keeps whole prefixes; leave out --kv-policy.")
    asked = read_prompts(file)
    llm = LLM(chat_template=chat_template, **computing)
    for each in asked:
        _compute(llm, file, each)
    if not llm.flush(_LONGEST_FLUSH):
        print(f"Not everything was written within {_LONGEST_FLUSH:.0f} seconds: run it again.")
    load = llm.load
    print(
        f"{len(asked):,} prompts: {load.prefill_tokens:,} tokens are computed, {load.prefix_hit_tokens:,} were there."
    )
    for line in told_of(load.shelves):
        print(line)


def told_of(shelves: Iterable[ShelfTotals]) -> Iterator[str]:
    """What is said of those that outlast the process: memory (--kv-host-memory) does not."""
    places = {"disk": "the folder of --kv-disk", "shared": "the store of --kv-store"}
    for shelf in shelves:
        if shelf.shelf in places:
            yield f"{shelf.slots:,} blocks are in {places[shelf.shelf]}, or on their way there."
            if shelf.dropped:
                yield f"{shelf.dropped:,} blocks were not written there, since it is too slow or fails: run it again."


def read_prompts(file: Path) -> list[dict[str, Any]]:
    """The prompts of a file, each with its line. Raises ConfigurationError where a line is none, or there is none."""
    lines = [line for line in enumerate(read_text(file, "the file of prompts").splitlines(), 1) if line[1].strip()]
    asked = [_asked(file, number, line) for number, line in lines]
    if not asked:
        raise ConfigurationError(f"{file} has no prompts.")
    return asked


def _asked(file: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"Line {number} of {file} is not JSON: {error}.") from None
    if not isinstance(found, dict) or len(found) != 1 or found.keys() - {"prompt", "messages"}:
        raise ConfigurationError(f'Line {number} of {file} must be {{"prompt": "…"}} or {{"messages": […]}}.')
    return {"line": number, **found}


def _compute(llm: LLM, file: Path, asked: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=1, temperature=0.0)
    try:
        if "prompt" in asked:
            llm.generate(asked["prompt"], params)
        else:
            llm.chat(asked["messages"], params)
    except PenstockError as error:
        raise ConfigurationError(f"Line {asked['line']} of {file}: {error.message}") from error
