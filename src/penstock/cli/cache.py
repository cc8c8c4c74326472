"""What `penstock cache …` does: look into a folder of --kv-disk, clear it, and fill it."""

import json
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Column, Table

from penstock.assembly.disk import cleared, parts_in
from penstock.assembly.prefix_keys import tags_in
from penstock.cli.files import read_text
from penstock.core.errors import ConfigurationError, PenstockError
from penstock.core.sampling import SamplingParams
from penstock.llm import LLM


def run_list(folder: Path, *, as_json: bool) -> None:
    """Print the parts of a folder. Raises ConfigurationError where it is none of --kv-disk."""
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
    if computing["kv_disk"] is None:
        raise ConfigurationError("penstock cache warm needs the folder of the server: --kv-disk DIR.")
    lines = [line for line in enumerate(read_text(file, "the file of prompts").splitlines(), 1) if line[1].strip()]
    asked = [_asked(file, number, line) for number, line in lines]
    if not asked:
        raise ConfigurationError(f"{file} has no prompts.")
    llm = LLM(chat_template=chat_template, **computing)
    for each in asked:
        _compute(llm, file, each)
    load, disk = llm.load, llm.load.shelf("disk")
    print(
        f"{len(asked):,} prompts: {load.prefill_tokens:,} tokens are computed, {load.prefix_hit_tokens:,} were there. "
        f"{disk.slots:,} blocks are in {computing['kv_disk']}, or on their way there."
    )
    if disk.dropped:
        print(f"{disk.dropped:,} blocks were not written, since the disk was too slow or failed: run it again.")


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
