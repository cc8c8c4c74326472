"""`penstock models`: which models are on this machine, and which of them can be served."""

import sys
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from penstock.bundled.registry import FOLDER, BundledModel, bundled_models
from penstock.cli.files import json_bytes
from penstock.core.errors import StartupError
from penstock.loading.cache_folder import default_folder, packed_files
from penstock.loading.checkpoint import open_checkpoint
from penstock.loading.fitting import model_of
from penstock.loading.hub import CachedModel, HubCache, is_hub_name, scan_cache
from penstock.models.registry import SERVED, declare

NOTHING = "-"


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model as `penstock models --json` prints it.

    Attributes:
        name: what to give as MODEL.
        source: where it comes from.
        summary: what it is: of a bundled model what it can do, else its architecture; None where that is not known.
        parameters: how many, None where that is not known.
        size_bytes: on disk; of a cached model, of all its revisions.
        directory: where its files are, None where only other revisions of it are cached.
        servable: whether Penstock can serve it, and `reason` why not.
    """

    name: str
    source: Literal["bundled", "cache"]
    summary: str | None
    parameters: int | None
    size_bytes: int
    directory: str | None
    servable: bool
    reason: str | None


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What `penstock models --json` prints.

    Attributes:
        cache: the hub's cache.
        problems: a sentence for each unsound thing in the caches.
        packed_cache: the folder that keeps packed weights between starts, and `packed_bytes` what is in it.
    """

    models: list[ModelEntry]
    cache: str
    problems: list[str]
    packed_cache: str
    packed_bytes: int


def run_models(*, as_json: bool, folder: Path = FOLDER) -> None:
    """Print what is bundled, in `folder`, and what is in the Hugging Face cache."""
    listing = list_models(bundled_models(folder), scan_cache())
    if as_json:
        print(json_bytes(listing).decode())
        return
    # Where the output is no terminal, nothing is cut to the width of a screen.
    console = Console(width=None if sys.stdout.isatty() else 1000, highlight=False)
    console.print("[bold]Bundled with Penstock[/bold]")
    console.print(_bundled_table([entry for entry in listing.models if entry.source == "bundled"]))
    cached = [entry for entry in listing.models if entry.source == "cache"]
    heading = f"\n[bold]Hugging Face cache[/bold] ({escape(listing.cache)})"
    console.print(heading if cached else f"{heading}: no models", soft_wrap=True)
    if cached:
        console.print(_cache_table(cached))
    for problem in listing.problems:
        console.print(f"not sound in the cache: {escape(problem)}", soft_wrap=True)
    packed = f"\n[bold]Packed weights[/bold] ({escape(listing.packed_cache)}): {_bytes(listing.packed_bytes)}"
    console.print(f"{packed}, which can be deleted" if listing.packed_bytes else packed, soft_wrap=True)


def run_supported(*, as_json: bool) -> None:
    """Print which architectures can be served."""
    if as_json:
        print(json_bytes({"architectures": {name: served.models for name, served in SERVED.items()}}).decode())
        return
    table = Table("architecture in config.json", "models", box=None, pad_edge=False, header_style="dim")
    for name, served in SERVED.items():
        table.add_row(name, served.models)
    Console(width=None if sys.stdout.isatty() else 1000, highlight=False).print(table)


def list_models(bundled: tuple[BundledModel, ...], cache: HubCache) -> Listing:
    """All models with what their configurations and headers say; no weight is read."""
    entries = [_bundled_entry(model) for model in bundled] + [_cached_entry(model) for model in cache.models]
    packed, packed_bytes, problems = default_folder(), 0, list(cache.problems)
    try:
        packed_bytes = sum(size for _, size in packed_files(packed))
    except OSError as error:
        problems.append(f"The folder of packed weights {packed} cannot be read ({error.strerror}); set PENSTOCK_CACHE.")
    return Listing(
        models=entries,
        cache=str(cache.folder),
        problems=problems,
        packed_cache=str(packed),
        packed_bytes=packed_bytes,
    )


def _bundled_entry(model: BundledModel) -> ModelEntry:
    size, parameters, reason = 0, None, None
    try:
        directory = model.installed()
        size = sum(file.stat().st_size for file in directory.iterdir())
        _, parameters = _inspect(directory)
    except StartupError as error:
        reason = error.message
    return ModelEntry(
        name=model.name,
        source="bundled",
        summary=model.summary,
        parameters=parameters,
        size_bytes=size,
        directory=str(model.directory),
        servable=reason is None,
        reason=reason,
    )


def _cached_entry(model: CachedModel) -> ModelEntry:
    architecture, parameters, reason = None, None, None
    if model.directory is None:
        reason = f"Only other revisions of {model.name} than its main one are cached."
    else:
        try:
            architecture, parameters = _inspect(model.directory)
        except StartupError as error:
            # The hub's name says more than the path of a snapshot.
            reason = error.message.replace(str(model.directory), model.name)
        if reason is None and not is_hub_name(model.name):
            reason = f"Names of the hub are taken with an owner, and {model.name} has none: give {model.directory}."
    return ModelEntry(
        name=model.name,
        source="cache",
        summary=architecture,
        parameters=parameters,
        size_bytes=model.size,
        directory=None if model.directory is None else str(model.directory),
        servable=reason is None,
        reason=reason,
    )


def _inspect(directory: Path) -> tuple[str, int]:
    """Architecture and number of parameters; raises StartupError where the model cannot be served."""
    # The configuration first: an architecture that is not implemented says more than the format of its files.
    declare(open_checkpoint(directory, weights=False).config)
    checkpoint = open_checkpoint(directory)
    declaration = model_of(checkpoint)
    checkpoint.locate(declaration)
    return declaration.architecture, declaration.num_parameters


def _bundled_table(entries: list[ModelEntry]) -> Table:
    table = _table("what it does")
    for entry in entries:
        about = entry.summary if entry.reason is None else f"cannot be served: {entry.reason}"
        table.add_row(entry.name, _count(entry.parameters), _bytes(entry.size_bytes), escape(about or NOTHING))
    return table


def _cache_table(entries: list[ModelEntry]) -> Table:
    table = _table("can be served")
    for entry in entries:
        # The cause is enough here; what would work instead is the same for many, and --json has it.
        about = "yes" if entry.reason is None else f"no: {entry.reason.split(';')[0].rstrip('.')}"
        table.add_row(escape(entry.name), _count(entry.parameters), _bytes(entry.size_bytes), escape(about))
    return table


def _table(last: str) -> Table:
    # What does not fit is folded, never cut: names can be copied.
    return Table(
        Column("model", overflow="fold"),
        Column("parameters", justify="right"),
        Column("size", justify="right"),
        Column(last, overflow="fold"),
        box=None,
        pad_edge=False,
        header_style="dim",
    )


def _count(number: int | None) -> str:
    if number is None:
        return NOTHING
    return f"{number / 1e9:.2f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"


def _bytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
