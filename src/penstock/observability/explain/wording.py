"""Numbers as people read them."""


def duration(seconds: float) -> str:
    """Such as "3.2 s" or "12 ms"."""
    if seconds >= 100:
        return f"{seconds:.0f} s"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds >= 0.001:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.0f} µs"


def number(value: int) -> str:
    """A number with commas between thousands."""
    return f"{value:,}"
