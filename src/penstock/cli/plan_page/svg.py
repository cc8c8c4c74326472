"""Plots as SVG, without a library: scales, frames and marks. Colours are classes of the page's style."""

from collections.abc import Iterable, Sequence
from html import escape
from math import ceil, floor, log10

import msgspec

WIDTH, HEIGHT = 460, 310
# Where the plot itself begins and ends; the rest has numbers and names of axes.
LEFT, RIGHT, TOP, BOTTOM = 62, 446, 14, 258
_MOST_TICKS = 6


class Scale(msgspec.Struct, frozen=True):
    """Where values lie between `start` and `end`, in units of the drawing."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The place of a value; one beyond an end is at that end."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            part = log10(value / self.low) / log10(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return round(self.start + part * (self.end - self.start), 2)

    def ticks(self) -> list[float]:
        """Round values between the ends, at most about six."""
        if self.logarithmic:
            first, last = ceil(log10(self.low) - 1e-9), floor(log10(self.high) + 1e-9)
            steps = (1, 2, 5) if last - first < 2 else (1,)
            found = [
                step * 10.0**power
                for power in range(first - 1, last + 1)
                for step in steps
                if self.low * 0.999 <= step * 10.0**power <= self.high * 1.001
            ]
            return found[:: ceil(len(found) / _MOST_TICKS)] if found else [self.low]
        raw = (self.high - self.low) / _MOST_TICKS
        power = 10.0 ** floor(log10(raw))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
        return [step * number for number in range(ceil(self.low / step), floor(self.high / step + 1e-9) + 1)]


def horizontal(low: float, high: float, *, logarithmic: bool = False) -> Scale:
    """A scale from left to right."""
    return Scale(low, high, LEFT, RIGHT, logarithmic)


def vertical(low: float, high: float, *, logarithmic: bool = False) -> Scale:
    """A scale from the bottom up."""
    return Scale(low, high, BOTTOM, TOP, logarithmic)


def short(value: float) -> str:
    """A number for an axis: 0.5, 20, 3k, 1.5M, 2B."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def drawing(key: str, title: str, description: str, parts: Iterable[str], height: float = HEIGHT) -> str:
    """A whole drawing, with a name and a description for those who do not see it."""
    return (
        f'<svg id="{key}" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="{key}-title {key}-text">'
        f'<title id="{key}-title">{escape(title)}</title><desc id="{key}-text">{escape(description)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def frame(across: Scale, up: Scale, across_name: str, up_name: str, dollars: str = "") -> list[str]:
    """Lines of a grid with their numbers, and what the axes are."""
    found = []
    for value in across.ticks():
        place = across.at(value)
        found.append(f'<path class="grid-line" d="M{place} {TOP}V{BOTTOM}"/>')
        found.append(text(place, BOTTOM + 17, short(value), "tick", anchor="middle"))
    for value in up.ticks():
        place = up.at(value)
        found.append(f'<path class="grid-line" d="M{LEFT} {place}H{RIGHT}"/>')
        found.append(text(LEFT - 7, place + 4, f"{dollars}{short(value)}", "tick", anchor="end"))
    found.append(f'<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>')
    found.append(text((LEFT + RIGHT) / 2, BOTTOM + 40, across_name, "name", anchor="middle"))
    middle = (TOP + BOTTOM) / 2
    turned = f'transform="rotate(-90 14 {middle:g})"'
    found.append(f'<text class="name" x="14" y="{middle:g}" text-anchor="middle" {turned}>{escape(up_name)}</text>')
    return found


def text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    """Words at a place; `anchor` says which part of them is there: start, middle or end."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def line(kind: str, points: Sequence[tuple[float, float]]) -> str:
    """A line from place to place, in straight pieces."""
    path = "L".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path class="{kind}" d="M{path}"/>'


def mark(kind: str, x: float, y: float, told: str, size: float = 4.5) -> str:
    """A dot that tells what it is when it is pointed at."""
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{size:g}"><title>{escape(told)}</title></circle>'


def box(kind: str, x: float, y: float, width: float, height: float, told: str) -> str:
    """A rectangle that tells what it is when it is pointed at."""
    shape = f'x="{x:g}" y="{y:g}" width="{max(width, 0):g}" height="{height:g}"'
    return f'<rect class="{kind}" {shape}><title>{escape(told)}</title></rect>'
