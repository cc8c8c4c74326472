"""A disk beside the KV pool in plans and simulations: what `--kv-disk` says of it, and what is told of it."""

from rich.console import Console
from rich.table import Column, Table

from penstock.configuration.sizes import parse_size
from penstock.core.errors import ConfigurationError
from penstock.planning.disk import Disk, DiskTold
from penstock.planning.hardware import Device

_WANTED = "write bytes and what is read and written a second, as in 20GiB,read=2GB/s,write=500MB/s"
_NOT_COUNTED = "Copies between a GPU's memory and the processor's are not counted: they have not been measured."


def parse_disk(text: str | None) -> Disk | None:
    """What `--kv-disk` says of a disk that is planned with; None where it says nothing. Raises ConfigurationError."""
    if text is None:
        return None
    first, *rest = (part.strip() for part in text.split(","))
    if not rest:
        raise ConfigurationError(f"--kv-disk {text!r} does not say how fast the disk is; {_WANTED}.")
    rates: dict[str, float] = {}
    for part in rest:
        name, _, rate = part.partition("=")
        if name not in ("read", "write") or name in rates or not rate.endswith("/s"):
            raise ConfigurationError(f"--kv-disk: {part[:80]!r} is no rate, or there twice; {_WANTED}.")
        rates[name] = float(parse_size(rate.removesuffix("/s"), f"--kv-disk {name}=") or 0)
    size = parse_size(first, "--kv-disk") or 0
    if not size or not all(rates.values()) or len(rates) < 2:
        raise ConfigurationError(f"--kv-disk {text!r} lacks a size or a rate above 0; {_WANTED}.")
    return Disk(float(size), rates["read"], rates["write"])


def note_of(device: Device) -> str | None:
    """What should be known of a disk beside a device; None: nothing."""
    return None if device.kind == "cpu" else _NOT_COUNTED


def print_disk(console: Console, told: DiskTold) -> None:
    """Print what a plan tells of a disk."""
    beside = f", and a sequence {told.record_bytes / 1024:,.1f} KiB beside" if told.record_bytes else ""
    console.print(
        f"A token takes {told.token_bytes / 1024:,.1f} KiB on the disk{beside}: it holds {told.tokens:,} tokens, and "
        f"takes {told.written_per_second:,.0f} a second."
    )
    right = [Column(name, justify="right") for name in ("prefix, tokens", "computed, ms", "read, ms")]
    table = Table(*right, box=None)
    for each in told.prefixes:
        table.add_row(f"{each.tokens:,}", f"{each.computed_ms:,.0f}", f"{each.read_ms:,.0f}")
    console.print(table)
    if told.pays_from is None:
        console.print("No prefix is read faster than it is computed.")
    else:
        console.print(f"Prefixes of {told.pays_from:,} tokens or more are read faster than they are computed.")
    console.print()
