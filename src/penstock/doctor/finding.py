"""What a diagnosis says: findings, each with the figures that it follows from."""

from typing import Literal

import msgspec

Level = Literal["ok", "note", "warning", "problem"]
"""How much a finding matters.

ok: nothing is to be done. note: good to know, or worth a try. warning: it costs speed or memory now, or will under
load. problem: serving fails, or is several times slower than the machine allows.
"""

LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "problem")

Layer = Literal["L0", "L1", "L2", "L3", "L4a", "L4b", "L5", "L6"]

LAYERS: dict[Layer, str] = {
    "L0": "processor, memory and interconnect",
    "L1": "operating system and drivers",
    "L2": "container and packaging",
    "L3": "engine: weights, kernels, KV memory",
    "L4a": "routing between instances",
    "L4b": "batching and KV cache of one instance",
    "L5": "gateway: limits, keys, tenants",
    "L6": "client",
}


class Evidence(msgspec.Struct, frozen=True):
    """A figure, and where it was read."""

    figure: str
    source: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        subject: what.
        layer: where it belongs, so that a remedy is sought there.
        figure: how it is, in a few words.
        meaning: what that bounds or costs when a model is served.
        advice: what would change it; None where nothing has to.
    """

    subject: str
    layer: Layer
    level: Level
    figure: str
    meaning: str
    advice: str | None = None
    evidence: tuple[Evidence, ...] = ()


def worst(findings: tuple[Finding, ...]) -> Level:
    """The highest level among findings."""
    return LEVELS[max((LEVELS.index(finding.level) for finding in findings), default=0)]


def in_bytes(size: float) -> str:
    """Bytes as people read them, in powers of 1,024 as memory is sold."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:.3g} {unit}" if size / scale < 1000 else f"{size / scale:,.0f} {unit}"
    return f"{size:.0f} B"


def in_number(value: float) -> str:
    """Three digits of a number, in full where it is large."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
