"""How what samples gained ends."""

from penstock.core.plan import FinishReason, Gained
from penstock.engine.interface import SampleDelta


def finish_of(gained: Gained | SampleDelta) -> FinishReason | None:
    """Why the output ended; None while it goes on."""
    return None if gained.ending is None else gained.ending.reason
