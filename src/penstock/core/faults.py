"""What can be made to go wrong in an engine, and where: for tests, and for operators who try out a failure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

POINTS: Mapping[str, str] = MappingProxyType(
    {
        "engine.step": "before a step is computed",
        "engine.send": "after a step, before its outputs are sent",
        "rank.load": "before a rank loads its weights; armed for the next start of the engine",
        "rank.step": "before a rank computes a step of which it has been told",
        "rank.meet": "in the middle of a step, each time a rank comes to where it meets the others",
        "rank.give": "before a stage of a pipeline gives the next one what it has made of a step",
        "rank.wait": "before a rank waits for what it is to do, between steps or while there are none",
    }
)
"""The fail-points: named places in the code, and where they are. Those of ranks are passed where there are several."""

FailAction = Literal["raise", "exit", "hang", "kill", "stop", "delay", "nothing"]
"""What can happen there: an error; the process ends, stands still, is killed or stopped by a signal, or pauses once."""

DELAY_SECONDS = 2.0


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """Something is to go wrong once at a fail-point.

    Attributes:
        passes: how often the point is passed before that.
        rank: of the process that it is to happen in; 0: the engine's own.
    """

    point: str
    action: FailAction
    passes: int = 0
    rank: int = 0
