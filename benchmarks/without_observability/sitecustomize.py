"""Takes out of both processes of a server what it does to tell of itself; for `observability_cost.py` alone.

Python imports a module of this name at its start where it is on the path. What is left are the objects that requests
have, so that everything else goes its way; what they would count and keep is not counted and not kept.
"""

import sys
from collections.abc import Callable
from typing import Any


def _nothing(*arguments: object, **named: object) -> None:
    return None


def _take_out(owner: type, *names: str, put: Callable[..., Any] = _nothing) -> None:
    for name in names:
        if not callable(getattr(owner, name)):
            raise TypeError(f"{owner.__name__}.{name} is not a method")
        setattr(owner, name, put)


def _engine() -> None:
    from penstock.core.facts import StepFacts
    from penstock.engine.contention import CpuWait
    from penstock.scheduler.notes import Notes

    silent = StepFacts()
    _take_out(Notes, "admission", "preemption", "row")
    _take_out(Notes, "facts", put=lambda self, budget, waiting: silent)
    _take_out(CpuWait, "since_last", put=lambda self, now: 0.0)


def _server() -> None:
    from penstock.engine.process import EngineProcess
    from penstock.observability.account import Account
    from penstock.observability.accounts import Accounts
    from penstock.observability.metrics import Metrics, RequestMeter
    from penstock.observability.recent import Recent

    _take_out(EngineProcess, "_note")
    _take_out(Metrics, "step")
    _take_out(RequestMeter, "accepted", "follow", "tokens", "passed_on", "finished", "end")
    _take_out(Account, "follow", "body", "sent", "judged")
    _take_out(Accounts, "end", "answered_as")
    _take_out(Recent, "begin")


# `sys.argv` is not there yet.
if "penstock.assembly" in sys.orig_argv:
    _engine()
elif "serve" in sys.orig_argv:
    _server()
